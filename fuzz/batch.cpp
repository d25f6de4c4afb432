#include "fuzz/batch.hpp"

#include <fmt/format.h>

#include <cstring>

#include "oracle/contract.hpp"
#include "oracle/file.hpp"
#include "oracle/json.hpp"
#include "oracle/tensor_file.hpp"
#include "oracle/witness.hpp"
#include "reference/evaluate.hpp"

namespace sumzero {
namespace {

constexpr std::string_view batch_schema = "sumzero-batch/1";
constexpr const char* text_key = "sumzero.json";
constexpr std::uint64_t most_cases = 100000;

/// Names the contents of a batch, its `batch` entry aside.
std::string hash_of(const TensorFile& file) {
  std::string all = file.metadata.at(text_key);
  for (const auto& [name, tensor] : file.tensors) {
    if (name == "batch") continue;
    all += fmt::format("\n{} {}", name, tensor.shape.size());
    for (const std::int64_t extent : tensor.shape) all += fmt::format(" {}", extent);
    all += '\n' + tensor.bytes;
  }
  return content_hash(all);
}

/// The `batch` that a file carries; empty when it has none.
std::string batch_named_by(const TensorFile& file) {
  if (const auto entry = file.metadata.find("batch"); entry != file.metadata.end()) return entry->second;
  if (const auto array = file.tensors.find("batch"); array != file.tensors.end()) return array->second.bytes;
  return "";
}

struct Batch {
  TensorFile file;
  std::string hash;
  BatchOptions options;
};

Batch read_batch(const std::filesystem::path& path) {
  Batch batch;
  batch.file = read_tensor_file(path);
  const std::string source = path.string();
  if (!batch.file.metadata.contains(text_key))
    throw InvalidInput(source + ": holds no '" + text_key + "'; give a file that `sumzero generate` wrote");
  const nlohmann::json parsed = parse_json(batch.file.metadata.at(text_key), source);
  const JsonValue text(parsed, source);
  text.require_schema(batch_schema);
  batch.options.op = text.at("operator").text();
  const std::optional<Format> format = floating_format_named(text.at("dtype").text());
  if (!format) text.at("dtype").fail("unknown dtype; known: " + std::string(floating_format_names));
  batch.options.format = *format;
  batch.options.seed = text.at("seed").count();
  batch.options.cases = text.at("drawn").count();
  if (batch.options.cases == 0 || batch.options.cases > most_cases) text.at("drawn").fail(fmt::format("must be 1 to {}; generate the batch again", most_cases));
  batch.hash = hash_of(batch.file);
  if (batch_named_by(batch.file) != batch.hash)
    throw InvalidInput(source + ": was changed after `sumzero generate` wrote it (its `batch` does not fit); generate it again");
  return batch;
}

/// A kernel of which only the results are known.
class StoredResults final : public Kernel {
 public:
  StoredResults(const Batch& batch, const std::filesystem::path& path, const Contract& contract) : contract_(contract) {
    op = batch.options.op;
    name = path.stem().string();
    summary = "results of a batch";
    const Signature& signature = Registry::global().operator_named(op).signature();
    const std::string source = path.string();
    const TensorFile results = read_tensor_file(path);
    const std::string answers = batch_named_by(results);
    if (answers.empty()) throw InvalidInput(source + ": does not say which batch it answers; copy `batch` from the batch file");
    if (answers != batch.hash) throw InvalidInput(source + ": answers another batch; run the kernel on this batch again");
    std::map<std::string, Case> cases;
    for (std::uint64_t i = 0; i < batch.options.cases; ++i) {
      const Case input = campaign_case(signature, batch.options.format, batch.options.seed, i);
      const std::string address = content_address(input);
      if (!cases.emplace(address, input).second) continue;
      for (const auto& [input_name, tensor] : input.inputs) {
        const auto stored = batch.file.tensors.find(address + "/" + input_name);
        if (stored == batch.file.tensors.end() || stored->second.bytes != file_tensor(tensor).bytes)
          throw InvalidInput(source + ": the batch was written by another version of sumzero; generate it again");
      }
    }
    for (const auto& [key, tensor] : results.tensors) {
      if (key == "batch") continue;
      const std::size_t slash = key.find('/');
      const std::string address = key.substr(0, slash), output_name = slash == std::string::npos ? "" : key.substr(slash + 1);
      const auto found = cases.find(address);
      const int index = signature.output(output_name);
      if (found == cases.end() || index < 0)
        throw InvalidInput(fmt::format("{}: tensor '{}' is no <case>/<output> of the batch; see the batch's {}", source, valid_utf8(key), text_key));
      const OutputSpec& spec = signature.outputs[static_cast<std::size_t>(index)];
      const Reduction reduction = reduction_of(signature, attribute_values(signature, found->second));
      results_[address][output_name] = tensor_from(tensor, element_format(spec.element, batch.options.format),
                                                   tensor_shape(spec.shape, found->second, reduction), source + ": tensor '" + key + "'");
    }
    for (const OutputSpec& spec : signature.outputs)
      for (const auto& [address, tensors] : results_)
        if (tensors.contains(spec.name)) {
          outputs.push_back(spec.name);
          break;
        }
    if (outputs.empty()) throw InvalidInput(source + ": holds no output of the batch; name them <case>/<output>");
    for (const auto& [address, tensors] : results_)
      for (const std::string& output : outputs)
        if (!tensors.contains(output))
          throw InvalidInput(fmt::format("{}: tensor '{}/{}' is missing, other cases have this output; add it, or leave the case out", source, address, output));
  }
  bool supports(Format) const override { return true; }
  Contract contract(Format) const override { return contract_; }
  void run(const Call& call) const override {
    const auto found = results_.find(content_address(call.input));
    if (found == results_.end()) throw Refused("the results hold no output for this case");
    for (const auto& [output_name, stored] : found->second) {
      Tensor& output = call.outputs[static_cast<std::size_t>(call.signature.output(output_name))];
      // Byte by byte: a NaN keeps its code.
      for (std::int64_t i = 0; i < stored.elements(); ++i)
        std::memcpy(output.bytes.data() + output.position(i) * output.width(), stored.bytes.data() + i * stored.width(), static_cast<std::size_t>(stored.width()));
    }
  }

 private:
  Contract contract_;
  std::map<std::string, std::map<std::string, Tensor>> results_;
};

/// Contract of a kernel of which only outputs are known, bound kind `declared`.
Contract foreign_contract(std::string_view op, Format storage, const std::filesystem::path& path) {
  Contract contract = default_contract(storage);
  contract.kind = "declared";
  if (!path.empty()) contract = read_contract(path, op, storage, contract);
  // Finished results cannot be computed again, so nothing that compares two runs applies.
  contract.deterministic = false;
  return contract;
}

}  // namespace

void generate_batch(const BatchOptions& options, const std::filesystem::path& path) {
  if (options.cases > most_cases) throw InvalidInput(fmt::format("--cases {}: a batch holds at most {} cases; write several with different seeds", options.cases, most_cases));
  const Signature& signature = Registry::global().operator_named(options.op).signature();
  TensorFile file;
  nlohmann::ordered_json text = {{"schema", batch_schema}, {"operator", options.op}, {"dtype", name(options.format)}, {"seed", options.seed}, {"drawn", options.cases},
                                 {"results", "<case>/<output> for every case and any outputs, with `batch` copied from this file"}, {"cases", nlohmann::ordered_json::object()}};
  for (std::uint64_t i = 0; i < options.cases; ++i) {
    const Case input = campaign_case(signature, options.format, options.seed, i);
    const std::string address = content_address(input);
    if (text["cases"].contains(address)) continue;
    nlohmann::ordered_json entry = {{"extents", input.extents}, {"attributes", nlohmann::ordered_json::object()}, {"outputs", nlohmann::ordered_json::object()}};
    const std::vector<double> attributes = attribute_values(signature, input);
    for (std::size_t a = 0; a < attributes.size(); ++a)
      entry["attributes"][signature.attributes[a].name] = choice_or_number(signature.attributes[a], attributes[a]);
    for (const OutputSpec& spec : signature.outputs)
      entry["outputs"][spec.name] = {{"dtype", dtype_name(element_format(spec.element, options.format))},
                                     {"shape", tensor_shape(spec.shape, input, reduction_of(signature, attributes))}};
    text["cases"][address] = entry;
    for (const auto& [input_name, tensor] : input.inputs) file.tensors[address + "/" + input_name] = file_tensor(tensor);
  }
  file.metadata[text_key] = text.dump();
  const std::string hash = hash_of(file);
  if (path.extension() == ".npz") file.tensors["batch"] = {"U8", {static_cast<std::int64_t>(hash.size())}, hash};
  else file.metadata["batch"] = hash;
  write_tensor_file(path, file);
}

Report check_batch(const std::filesystem::path& path, const std::filesystem::path& results,
                   const std::filesystem::path& contract, CampaignOptions options) {
  const Batch batch = read_batch(path);
  const StoredResults kernel(batch, results, foreign_contract(batch.options.op, batch.options.format, contract));
  options.op = batch.options.op;
  options.kernel = kernel.name;
  options.subject = &kernel;
  options.format = batch.options.format;
  options.cases = batch.options.cases;
  options.seed = batch.options.seed;
  return run_campaign(options);
}

}  // namespace sumzero
