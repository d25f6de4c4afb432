// libFuzzer entry of both loaders: any bytes give a file or InvalidInput, and a file that was read survives a round trip.
#include <cstdlib>

#include "oracle/tensor_file.hpp"

using namespace sumzero;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const TensorFile file = parse_safetensors(bytes, "input");
    if (parse_safetensors(safetensors_bytes(file), "again") != file) std::abort();
  } catch (const InvalidInput&) {
  }
  try {
    const TensorFile file = parse_npz(bytes, "input");
    if (parse_npz(npz_bytes(file), "again") != file) std::abort();
  } catch (const InvalidInput&) {
  }
  return 0;
}
