// Files of named tensors, own readers and writers: safetensors, and the zip of npy arrays that numpy calls npz (stored or
// deflated). What they hold is foreign: everything is checked before it is used, and a broken rule throws InvalidInput.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "reference/case.hpp"

namespace sumzero {

/// Row-major elements. dtype is the name that safetensors uses: F64 F32 BF16 F16 F8_E4M3 F8_E5M2 I64 BOOL U8 U16; numpy has
/// neither bf16 nor 8-bit numbers, so npz holds their codes as U16 and U8.
struct FileTensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
  bool operator==(const FileTensor&) const = default;
};

struct TensorFile {
  std::map<std::string, FileTensor> tensors;
  std::map<std::string, std::string> metadata;  ///< `__metadata__` of safetensors; entries without .npy in npz
  bool operator==(const TensorFile&) const = default;
};

std::string_view dtype_name(Format format);
FileTensor file_tensor(const Tensor& tensor);
/// The contiguous tensor of a wanted format and shape; throws InvalidInput when the stored one is another.
Tensor tensor_from(const FileTensor& stored, Format format, const std::vector<std::int64_t>& shape, const std::string& what);

/// `source` names the file in messages.
TensorFile parse_safetensors(std::string_view bytes, const std::string& source);
TensorFile parse_npz(std::string_view bytes, const std::string& source);
std::string safetensors_bytes(const TensorFile& file);
std::string npz_bytes(const TensorFile& file);

/// By the ending of the name: .safetensors or .npz.
TensorFile read_tensor_file(const std::filesystem::path& path);
void write_tensor_file(const std::filesystem::path& path, const TensorFile& file);

}  // namespace sumzero
