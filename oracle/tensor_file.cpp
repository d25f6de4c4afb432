#include "oracle/tensor_file.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "oracle/file.hpp"
#include "oracle/json.hpp"

namespace sumzero {
namespace {

struct Dtype {
  std::string_view name, npy;
  std::int64_t width;
};
constexpr Dtype dtypes[] = {{"F64", "<f8", 8}, {"F32", "<f4", 4},    {"F16", "<f2", 2},    {"I64", "<i8", 8}, {"BOOL", "|b1", 1},
                            {"U16", "<u2", 2}, {"U8", "|u1", 1},     {"BF16", "<u2", 2},   {"F8_E4M3", "|u1", 1}, {"F8_E5M2", "|u1", 1}};
constexpr std::size_t most_tensor_axes = 8;

[[noreturn]] void fail(const std::string& source, const std::string& rule) { throw InvalidInput(source + ": " + rule); }

std::string list_of(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t extent : shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
  return text;
}

const Dtype& dtype_of(std::string_view name, const std::string& source, const std::string& tensor) {
  for (const Dtype& dtype : dtypes)
    if (dtype.name == name) return dtype;
  fail(source, fmt::format("tensor '{}' has dtype '{}'; use F64, F32, F16, BF16, F8_E4M3, F8_E5M2, I64, BOOL, U16 or U8", tensor, valid_utf8(name)));
}

/// Bytes of a shape; no product leaves 64 bits.
std::uint64_t bytes_of(const std::vector<std::int64_t>& shape, std::int64_t width, const std::string& source, const std::string& tensor) {
  if (shape.size() > most_tensor_axes) fail(source, fmt::format("tensor '{}' has {} axes; at most {} are read", tensor, shape.size(), most_tensor_axes));
  std::int64_t count = width;
  for (const std::int64_t extent : shape)
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count))
      fail(source, fmt::format("shape [{}] of tensor '{}' is negative or overflows 64 bits; correct it", list_of(shape), tensor));
  return static_cast<std::uint64_t>(count);
}

/// Little-endian number of `count` bytes; the caller has checked the range.
std::uint64_t little(std::string_view bytes, std::size_t at, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = count; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}
void put_little(std::string& bytes, std::uint64_t value, int count) {
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
}

std::string inflated(std::string_view packed, std::uint64_t size, const std::string& source, const std::string& entry) {
  // Deflate gains at most a factor of 1032: a larger claim is a lie, and nothing is allocated for it.
  if (size / 1032 > packed.size() + 1) fail(source, fmt::format("entry '{}' announces more bytes than its data can inflate to; write the file again", entry));
  std::string result(static_cast<std::size_t>(size), '\0');
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) fail(source, "zlib could not start; free memory and try again");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(result.data());
  stream.avail_out = static_cast<uInt>(result.size());
  const int status = inflate(&stream, Z_FINISH);
  const std::uint64_t made = stream.total_out;
  inflateEnd(&stream);
  if (status != Z_STREAM_END || made != size) fail(source, fmt::format("the compressed data of entry '{}' is damaged; write the file again", entry));
  return result;
}

std::uint32_t checksum(std::string_view bytes) {
  return static_cast<std::uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

/// The Python literal after a key of an npy header; the header is `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`.
std::string_view header_value(std::string_view header, std::string_view key, const std::string& source, const std::string& entry) {
  const std::string quoted = "'" + std::string(key) + "'";
  const std::size_t at = header.find(quoted);
  if (at == std::string_view::npos || header.find(quoted, at + 1) != std::string_view::npos)
    fail(source, fmt::format("the npy header of '{}' must hold '{}' once; write it with numpy.save", entry, key));
  const std::size_t start = header.find_first_not_of(": ", at + quoted.size());
  if (start == std::string_view::npos) fail(source, fmt::format("the npy header of '{}' has no value for '{}'; write it with numpy.save", entry, key));
  return header.substr(start);
}

std::vector<std::int64_t> header_shape(std::string_view text, const std::string& source, const std::string& entry) {
  const std::size_t end = text.find(')');
  if (text.empty() || text[0] != '(' || end == std::string_view::npos)
    fail(source, fmt::format("the shape in the npy header of '{}' is no tuple; write it with numpy.save", entry));
  std::vector<std::int64_t> shape;
  std::string_view rest = text.substr(1, end - 1);
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    std::string_view number = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    while (!number.empty() && number.front() == ' ') number.remove_prefix(1);
    if (number.empty() && rest.empty()) break;
    if (number.empty() || number.size() > 18 || number.find_first_not_of("0123456789") != std::string_view::npos)
      fail(source, fmt::format("the shape in the npy header of '{}' holds '{}', which is no extent; write it with numpy.save", entry, valid_utf8(number)));
    shape.push_back(std::stoll(std::string(number)));
  }
  return shape;
}

FileTensor parse_npy(std::string_view bytes, const std::string& source, const std::string& entry) {
  const bool magic = bytes.size() >= 10 && bytes.substr(0, 6) == std::string_view("\x93NUMPY", 6);
  const int version = magic ? bytes[6] : 0;
  if (version < 1 || version > 3) fail(source, fmt::format("entry '{}' is no npy array of version 1 to 3; write it with numpy.save", entry));
  const std::size_t prefix = version == 1 ? 10 : 12;
  if (bytes.size() < prefix || little(bytes, 8, version == 1 ? 2 : 4) > bytes.size() - prefix)
    fail(source, fmt::format("the npy header of '{}' is longer than the entry; write it with numpy.save", entry));
  const std::size_t length = static_cast<std::size_t>(little(bytes, 8, version == 1 ? 2 : 4));
  const std::string_view header = bytes.substr(prefix, length), data = bytes.substr(prefix + length);
  const std::string_view descr = header_value(header, "descr", source, entry);
  const Dtype* dtype = nullptr;
  for (const Dtype& known : dtypes)
    if (!dtype && descr.starts_with("'" + std::string(known.npy) + "'")) dtype = &known;
  if (!dtype) fail(source, fmt::format("the array '{}' has a dtype that is not read; use little-endian f8, f4, f2, i8, u2, u1 or b1", entry));
  FileTensor tensor{std::string(dtype->name), header_shape(header_value(header, "shape", source, entry), source, entry), std::string(data)};
  const bool several = std::count_if(tensor.shape.begin(), tensor.shape.end(), [](std::int64_t extent) { return extent > 1; }) > 1;
  if (!header_value(header, "fortran_order", source, entry).starts_with("False") && several)
    fail(source, fmt::format("the array '{}' is in Fortran order; save numpy.ascontiguousarray of it", entry));
  if (bytes_of(tensor.shape, dtype->width, source, entry) != data.size())
    fail(source, fmt::format("the array '{}' holds {} bytes, but its shape needs another number; write it with numpy.save", entry, data.size()));
  return tensor;
}

std::string npy_bytes(const FileTensor& tensor, const Dtype& dtype) {
  std::string shape;
  for (const std::int64_t extent : tensor.shape) shape += std::to_string(extent) + ", ";
  std::string header = "{'descr': '" + std::string(dtype.npy) + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  std::string bytes("\x93NUMPY\x01\x00", 8);
  put_little(bytes, header.size(), 2);
  return bytes + header + tensor.bytes;
}

}  // namespace

std::string_view dtype_name(Format format) {
  switch (format) {
    case Format::f64: return "F64";
    case Format::f32: return "F32";
    case Format::bf16: return "BF16";
    case Format::f16: return "F16";
    case Format::e4m3: return "F8_E4M3";
    case Format::e5m2: return "F8_E5M2";
    case Format::boolean: return "BOOL";
    case Format::index: return "I64";
  }
  return "F64";
}

FileTensor file_tensor(const Tensor& tensor) {
  const Tensor packed = tensor.packed();
  return {std::string(dtype_name(tensor.format)), tensor.shape,
          std::string(reinterpret_cast<const char*>(packed.bytes.data()), packed.bytes.size())};
}

Tensor tensor_from(const FileTensor& stored, Format format, const std::vector<std::int64_t>& shape, const std::string& what) {
  const std::string_view codes = format == Format::bf16 ? "U16" : format == Format::e4m3 || format == Format::e5m2 ? "U8" : "";
  if (stored.dtype != dtype_name(format) && (codes.empty() || stored.dtype != codes))
    throw InvalidInput(fmt::format("{} has dtype {}; it must be {}{}", what, stored.dtype, dtype_name(format),
                                   codes.empty() ? "" : fmt::format(" or its codes as {}", codes)));
  if (stored.shape != shape)
    throw InvalidInput(fmt::format("{} has shape [{}]; it must be [{}]", what, list_of(stored.shape), list_of(shape)));
  Tensor tensor = Tensor::contiguous(format, shape);
  if (stored.bytes.size() != tensor.bytes.size()) throw InvalidInput(what + " has too few or too many bytes; write the file again");
  std::memcpy(tensor.bytes.data(), stored.bytes.data(), stored.bytes.size());
  return tensor;
}

TensorFile parse_safetensors(std::string_view bytes, const std::string& source) {
  if (bytes.size() < 8) fail(source, "is shorter than the 8 bytes of a safetensors header length; write the file again");
  const std::uint64_t length = little(bytes, 0, 8);
  if (length > bytes.size() - 8)
    fail(source, fmt::format("announces a header of {} bytes, but only {} follow; write the file again", length, bytes.size() - 8));
  const std::string_view data = bytes.substr(8 + static_cast<std::size_t>(length));
  const nlohmann::json text = parse_json(bytes.substr(8, static_cast<std::size_t>(length)), source);
  const JsonValue header(text, source);
  TensorFile file;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const auto& [key, value] : header.fields()) {
    if (key == "__metadata__") {
      for (const auto& [name, entry] : value.fields()) file.metadata[name] = entry.text();
      continue;
    }
    value.only({"dtype", "shape", "data_offsets"});
    FileTensor tensor;
    tensor.dtype = value.at("dtype").text();
    const Dtype& dtype = dtype_of(tensor.dtype, source, key);
    for (const JsonValue& extent : value.at("shape").items()) tensor.shape.push_back(extent.integer(0));
    const std::vector<JsonValue> offsets = value.at("data_offsets").items();
    if (offsets.size() != 2) fail(source, fmt::format("tensor '{}' needs two data_offsets, begin and end", key));
    const std::uint64_t begin = offsets[0].count(), end = offsets[1].count();
    if (begin > end || end > data.size())
      fail(source, fmt::format("data_offsets [{}, {}] of tensor '{}' leave the {} bytes of data; write the file again", begin, end, key, data.size()));
    if (end - begin != bytes_of(tensor.shape, dtype.width, source, key))
      fail(source, fmt::format("tensor '{}' has {} bytes of data, but its shape and dtype need another number; write the file again", key, end - begin));
    tensor.bytes = std::string(data.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
    if (begin < end) ranges.emplace_back(begin, end);
    file.tensors[key] = std::move(tensor);
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i)
    if (ranges[i].first < ranges[i - 1].second)
      fail(source, fmt::format("two tensors share the data bytes from {}; write the file again", ranges[i].first));
  return file;
}

std::string safetensors_bytes(const TensorFile& file) {
  nlohmann::ordered_json header;
  if (!file.metadata.empty()) header["__metadata__"] = file.metadata;
  std::string data;
  for (const auto& [key, tensor] : file.tensors) {
    header[key] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  std::string text = header.is_null() ? "{}" : header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string bytes;
  put_little(bytes, text.size(), 8);
  return bytes + text + data;
}

TensorFile parse_npz(std::string_view bytes, const std::string& source) {
  // The end record is the last thing in a zip, before a comment of at most 65535 bytes.
  constexpr std::size_t end_size = 22;
  std::size_t end = std::string_view::npos;
  if (bytes.size() >= end_size)
    end = bytes.rfind(std::string_view("PK\5\6", 4), bytes.size() - end_size);
  if (end == std::string_view::npos || bytes.size() - end > end_size + 65535)
    fail(source, "is no complete zip archive (its end record is missing); write it with numpy.savez");
  const std::uint64_t entries = little(bytes, end + 10, 2);
  std::uint64_t at = little(bytes, end + 16, 4);
  TensorFile file;
  for (std::uint64_t i = 0; i < entries; ++i) {
    const auto needs = [&](std::uint64_t position, std::uint64_t count, std::uint64_t limit, const char* what) {
      if (position > limit || count > limit - position) fail(source, fmt::format("{} of entry {} leaves the file; write it with numpy.savez", what, i + 1));
    };
    needs(at, 46, end, "the directory record");
    const auto field = [&](std::uint64_t offset, std::size_t count) { return little(bytes, static_cast<std::size_t>(at + offset), count); };
    if (field(0, 4) != 0x02014b50) fail(source, fmt::format("the directory record of entry {} is damaged; write it with numpy.savez", i + 1));
    const std::uint64_t flags = field(8, 2), method = field(10, 2), crc = field(16, 4), packed = field(20, 4), size = field(24, 4);
    const std::uint64_t name_length = field(28, 2), local = field(42, 4);
    needs(at + 46, name_length + field(30, 2) + field(32, 2), end, "the name");
    const std::string name(bytes.substr(static_cast<std::size_t>(at + 46), static_cast<std::size_t>(name_length)));
    const std::string shown = valid_utf8(name);
    at += 46 + name_length + field(30, 2) + field(32, 2);
    if (flags & 1) fail(source, fmt::format("entry '{}' is encrypted; write it without a password", shown));
    if (packed == 0xffffffff || size == 0xffffffff || local == 0xffffffff) fail(source, fmt::format("entry '{}' has 4 GiB or more; split the batch", shown));
    needs(local, 30, end, "the header");
    const std::uint64_t start = local + 30 + little(bytes, static_cast<std::size_t>(local) + 26, 2) + little(bytes, static_cast<std::size_t>(local) + 28, 2);
    needs(start, packed, end, "the data");
    const std::string_view stored = bytes.substr(static_cast<std::size_t>(start), static_cast<std::size_t>(packed));
    if (method != 0 && method != 8) fail(source, fmt::format("entry '{}' is compressed by method {}; only stored and deflate are read", shown, method));
    if (method == 0 && packed != size) fail(source, fmt::format("entry '{}' is stored with two different sizes; write it with numpy.savez", shown));
    const std::string content = method == 0 ? std::string(stored) : inflated(stored, size, source, shown);
    if (checksum(content) != crc) fail(source, fmt::format("the checksum of entry '{}' is wrong; copy or write the file again", shown));
    const bool array = name.ends_with(".npy");
    const std::string key = array ? name.substr(0, name.size() - 4) : name;
    if (file.tensors.count(key) + file.metadata.count(key) > 0) fail(source, fmt::format("entry '{}' appears twice; keep one", shown));
    if (array) file.tensors[key] = parse_npy(content, source, valid_utf8(key));
    else file.metadata[key] = content;
  }
  return file;
}

std::string npz_bytes(const TensorFile& file) {
  std::string bytes, directory;
  std::uint64_t entries = 0;
  const auto add = [&](const std::string& name, const std::string& content) {
    std::string common;
    put_little(common, 20, 2), put_little(common, 0x800, 2), put_little(common, 0, 2);  // version, names in UTF-8, stored
    put_little(common, 0x21u << 16, 4);                                                  // 1980-01-01: the same bytes on every day
    put_little(common, checksum(content), 4), put_little(common, content.size(), 4), put_little(common, content.size(), 4);
    put_little(common, name.size(), 2), put_little(common, 0, 2);
    put_little(directory, 0x02014b50, 4), put_little(directory, 20, 2);
    directory += common;
    put_little(directory, 0, 2), put_little(directory, 0, 2), put_little(directory, 0, 2), put_little(directory, 0, 4);
    put_little(directory, bytes.size(), 4);
    directory += name;
    put_little(bytes, 0x04034b50, 4);
    bytes += common + name + content;
    ++entries;
    if (entries > 0xfffe || bytes.size() > 0xfffffffe) throw InvalidInput("an npz file holds at most 65534 arrays and 4 GiB; ask for fewer cases or use safetensors");
  };
  for (const auto& [key, text] : file.metadata) add(key, text);
  for (const auto& [key, tensor] : file.tensors) add(key + ".npy", npy_bytes(tensor, dtype_of(tensor.dtype, "npz", key)));
  const std::size_t start = bytes.size();
  bytes += directory;
  put_little(bytes, 0x06054b50, 4), put_little(bytes, 0, 4);
  put_little(bytes, entries, 2), put_little(bytes, entries, 2), put_little(bytes, directory.size(), 4), put_little(bytes, start, 4), put_little(bytes, 0, 2);
  return bytes;
}

TensorFile read_tensor_file(const std::filesystem::path& path) {
  if (path.extension() == ".safetensors") return parse_safetensors(read_file(path), path.string());
  if (path.extension() == ".npz") return parse_npz(read_file(path), path.string());
  fail(path.string(), "is neither .safetensors nor .npz; give the name one of these endings");
}

void write_tensor_file(const std::filesystem::path& path, const TensorFile& file) {
  if (path.extension() == ".safetensors") return write_file(path, safetensors_bytes(file));
  if (path.extension() == ".npz") return write_file(path, npz_bytes(file));
  fail(path.string(), "is neither .safetensors nor .npz; give the name one of these endings");
}

}  // namespace sumzero
