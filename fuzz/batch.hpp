// Tensor files as a door to kernels that run elsewhere: a batch of cases goes out, outputs come back and are judged.
//
// A batch holds one tensor per case and input, `<case>/<input>`, row-major, and JSON under the metadata key `sumzero.json`
// that says what to compute; `<case>` is the case's content address. Results hold `<case>/<output>` and repeat the `batch`
// of the batch: in safetensors a metadata entry, in npz an array of 32 bytes.
#pragma once

#include <filesystem>
#include <string>

#include "fuzz/campaign.hpp"

namespace sumzero {

struct BatchOptions {
  std::string op;
  Format format = Format::f32;
  std::uint64_t cases = 200, seed = 1;
};

/// Writes the cases that a campaign with the same seed would draw.
void generate_batch(const BatchOptions& options, const std::filesystem::path& path);

/// Judges results as a campaign of these cases. `options` gives threads, folder and progress; the rest comes from the batch.
/// Outputs that no case has are not judged; a case without any output counts as refused. The kernel is judged by
/// default_contract with the fields of the JSON file `contract` over it (oracle/contract.hpp), if that is not empty.
Report check_batch(const std::filesystem::path& batch, const std::filesystem::path& results,
                   const std::filesystem::path& contract, CampaignOptions options);

}  // namespace sumzero
