// Witness files: the round trip is exact, and nothing malformed gets through or gets far.
#include "oracle/witness.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <random>
#include <thread>

#include "oracle/file.hpp"
#include "tests/unit/samples.hpp"

namespace sumzero {
namespace {

namespace fs = std::filesystem;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "sumzero-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// Message of the InvalidInput that a text causes; empty when it is accepted.
std::string complaint(const std::string& text) {
  try {
    parse_witness(text, "pair.json");
    return "";
  } catch (const InvalidInput& error) {
    return error.what();
  }
}

/// Storage bits with every NaN made the same one.
std::vector<double> values_of(const Tensor& tensor) {
  std::vector<double> values;
  for (std::size_t i = 0; i * traits(tensor.format).bytes < tensor.bytes.size(); ++i)
    values.push_back(load_element(tensor.bytes.data() + i * traits(tensor.format).bytes, tensor.format));
  return values;
}

void expect_same(const Case& a, const Case& b) {
  EXPECT_EQ(a.op, b.op);
  EXPECT_EQ(a.storage, b.storage);
  EXPECT_EQ(a.extents, b.extents);
  ASSERT_EQ(a.attributes.size(), b.attributes.size());
  for (const auto& [key, value] : a.attributes)
    EXPECT_EQ(std::bit_cast<std::uint64_t>(value), std::bit_cast<std::uint64_t>(b.attributes.at(key))) << key;
  ASSERT_EQ(a.inputs.size(), b.inputs.size());
  for (const auto& [key, tensor] : a.inputs) {
    const Tensor& other = b.inputs.at(key);
    EXPECT_EQ(tensor.format, other.format);
    EXPECT_EQ(tensor.shape, other.shape);
    EXPECT_EQ(tensor.strides, other.strides);
    EXPECT_EQ(tensor.offset, other.offset);
    const std::vector<double> left = values_of(tensor), right = values_of(other);
    ASSERT_EQ(left.size(), right.size()) << key;
    for (std::size_t i = 0; i < left.size(); ++i) {
      if (std::isnan(left[i])) EXPECT_TRUE(std::isnan(right[i])) << key << " " << i;
      else EXPECT_EQ(std::bit_cast<std::uint64_t>(left[i]), std::bit_cast<std::uint64_t>(right[i])) << key << " " << i;
    }
  }
}

/// Any bits of the format: zeros of both signs, subnormals, infinities and NaNs included.
void fill(Tensor& tensor, std::mt19937_64& random) {
  for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(random());
}

Case random_case(std::mt19937_64& random) {
  constexpr auto formats = floating_formats;
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
  Case input;
  input.op = "softmax";
  input.storage = formats[below(4)];
  const bool large = below(10) == 0;  // above readable_elements, so that base64 is used
  input.extents = {1 + below(4), large ? 4097 + below(2000) : 1 + below(20)};
  if (below(2)) input.attributes["inf_policy"] = static_cast<double>(below(2));
  for (const char* key : {"x", "g"}) {
    if (key[0] == 'g' && below(2)) continue;
    Tensor tensor;
    tensor.format = input.storage;
    tensor.shape = input.extents;
    const std::int64_t step = 1 + below(2), gap = below(3);
    std::int64_t row = tensor.shape[1] * step + gap;
    tensor.offset = below(5);
    if (below(4) == 0) row = 0;  // broadcast over the rows
    tensor.strides = {row, step};
    std::int64_t last = tensor.offset + (tensor.shape[0] - 1) * row + (tensor.shape[1] - 1) * step;
    if (below(4) == 0) {  // backwards along the classes
      tensor.offset += (tensor.shape[1] - 1) * step;
      tensor.strides[1] = -step;
    }
    last += below(3);  // slack at the end
    tensor.bytes.resize(static_cast<std::size_t>((last + 1) * tensor.width()));
    fill(tensor, random);
    input.inputs[key] = tensor;
  }
  return input;
}

TEST(Witness, RandomCasesReadBackBitForBit) {
  std::mt19937_64 random(20240917);
  for (int i = 0; i < 300; ++i) {
    const Case input = random_case(random);
    const std::string text = witness_text(input);
    const Case back = parse_witness(text, "text");
    expect_same(input, back);
    EXPECT_EQ(witness_text(back), text);
    EXPECT_EQ(content_address(back), content_address(input));
    if (HasFailure()) return;
  }
}

TEST(Witness, Base64KeepsTheBitsOfNaNs) {
  std::mt19937_64 random(7);
  Case input;
  input.op = "softmax";
  input.extents = {1, 5000};
  Tensor x = Tensor::contiguous(Format::f32, {1, 5000});
  fill(x, random);
  const std::uint32_t signalling = 0xffa12345u;
  std::memcpy(x.bytes.data(), &signalling, sizeof signalling);
  input.inputs["x"] = x;
  EXPECT_EQ(parse_witness(witness_text(input), "text"), input);
}

TEST(Witness, IsReadable) {
  const std::string text = witness_text(collapse_pair());
  EXPECT_NE(text.find("\"schema\": \"sumzero-case/1\""), std::string::npos) << text;
  EXPECT_NE(text.find("\"reduction\": \"mean\""), std::string::npos) << text;
  EXPECT_NE(text.find("[\"0x1.1p+4\", \"0x0p+0\"]"), std::string::npos) << text;
}

TEST(Witness, AttributesKeepTheirBits) {
  Case input = collapse_pair();
  for (const double smoothing : {0.1, 0x1.999999999999bp-4, 0x1p-1074, 0.5, 1.0, 0.0, -0.0}) {
    input.attributes["label_smoothing"] = smoothing;
    expect_same(input, parse_witness(witness_text(input), "text"));
  }
  input.attributes["label_smoothing"] = 0.1;
  EXPECT_NE(witness_text(input).find("\"label_smoothing\": 0.1"), std::string::npos);
  input.attributes["label_smoothing"] = 0x1.999999999999bp-4;
  EXPECT_NE(witness_text(input).find("\"label_smoothing\": \"0x1.999999999999bp-4\""), std::string::npos);
}

TEST(Witness, LabelsBeyondDoublesAreKept) {
  Case input = collapse_pair();
  input.attributes["ignore_index"] = 0x1p53;
  const std::int64_t label = (std::int64_t{1} << 53) + 1;  // no double; validate compares it rounded, hence ignored
  std::memcpy(input.inputs["label"].bytes.data(), &label, sizeof label);
  EXPECT_EQ(parse_witness(witness_text(input), "text"), input);
}

TEST(Witness, MayBeTypedByHand) {
  const Case input = parse_witness(R"({"schema": "sumzero-case/1", "operator": "cross_entropy", "storage": "f32",
    "extents": [1, 2], "inputs": {"x": {"format": "f32", "shape": [1, 2], "data": [17, "0"]},
    "label": {"format": "index", "shape": [1], "data": [0]}}})", "typed");
  Case expected = collapse_pair();
  expected.attributes.clear();
  EXPECT_EQ(input, expected);
}

TEST(Witness, AddressDependsOnEveryPart) {
  const Case base = collapse_pair();
  const std::string address = content_address(base);
  EXPECT_EQ(address.size(), 32u);
  EXPECT_EQ(address, content_address(base));
  const std::vector<std::function<void(Case&)>> changes = {
      [](Case& c) { c.op = "log_softmax"; },
      [](Case& c) { c.storage = Format::f64; },
      [](Case& c) { c.extents = {2, 1}; },
      [](Case& c) { c.attributes["reduction"] = 1; },
      [](Case& c) { c.inputs["x"].set(1, -0.0); },
      [](Case& c) { c.inputs["x"].strides[0] = 3; },
      [](Case& c) { c.inputs["x"].bytes.resize(12); },
      [](Case& c) { c.inputs["x"].offset = 1; },
      [](Case& c) { c.inputs["label"].set(0, 1); },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    Case changed = base;
    changes[i](changed);
    EXPECT_NE(content_address(changed), address) << "change " << i;
  }
}

TEST(Witness, FilesAreNamedByContentAndLeftAlone) {
  const TemporaryFolder folder;
  const fs::path deep = folder.path() / "new" / "folder";
  const std::string address = write_witness(deep, collapse_pair());
  const fs::path file = deep / (address + ".json");
  EXPECT_EQ(read_witness(file), collapse_pair());
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  fs::last_write_time(file, old);
  write_witness(deep, collapse_pair());
  EXPECT_EQ(fs::last_write_time(file), old) << "an identical file was written again";
  std::ofstream(file) << "damaged";
  write_witness(deep, collapse_pair());
  EXPECT_EQ(read_witness(file), collapse_pair()) << "a damaged file was kept";
  EXPECT_EQ(std::distance(fs::directory_iterator(deep), fs::directory_iterator()), 1) << "a temporary file was left";
}

TEST(Witness, ShardsMayWriteTheSameFile) {
  const TemporaryFolder folder;
  std::vector<std::thread> shards;
  for (int i = 0; i < 4; ++i)
    shards.emplace_back([&] {
      for (int k = 0; k < 20; ++k) write_witness(folder.path(), collapse_pair());
    });
  for (std::thread& shard : shards) shard.join();
  EXPECT_EQ(read_witness(folder.path() / (content_address(collapse_pair()) + ".json")), collapse_pair());
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
}

TEST(Witness, UnwritableFoldersAndUnreadableFilesAreNamed) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "file") << "x";
  EXPECT_THROW(write_witness(folder.path() / "file", collapse_pair()), InvalidInput);
  EXPECT_THROW(read_witness(folder.path()), InvalidInput);
  try {
    read_witness(folder.path() / "absent.json");
    FAIL() << "an absent file was read";
  } catch (const InvalidInput& error) {
    EXPECT_NE(std::string(error.what()).find("absent.json"), std::string::npos);
  }
}

TEST(Witness, CasesThatCannotBeReadBackAreNotWritten) {
  const TemporaryFolder folder;
  Case broken = collapse_pair();
  broken.inputs["label"].set(0, 5);
  EXPECT_THROW(write_witness(folder.path(), broken), InvalidInput);
  broken = collapse_pair();
  broken.inputs["x"].bytes.resize(7);
  EXPECT_THROW(write_witness(folder.path(), broken), InvalidInput);
  broken = collapse_pair();
  broken.op = "no_such_operator";
  EXPECT_THROW(write_witness(folder.path(), broken), InvalidInput);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Witness, EveryTruncationIsRefused) {
  const std::string text = witness_text(collapse_pair());
  ASSERT_EQ(complaint(text), "");
  for (std::size_t length = 0; length < text.find_last_of('}'); ++length) {
    const std::string message = complaint(text.substr(0, length));
    EXPECT_NE(message.find("pair.json"), std::string::npos) << length;
    EXPECT_NE(message.find("line "), std::string::npos) << length;
  }
}

TEST(Witness, EveryDamagedByteIsRefusedOrReadCleanly) {
  const std::string text = witness_text(collapse_pair());
  std::mt19937_64 random(3);
  int refused = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    std::string damaged = text;
    damaged[at] = static_cast<char>(random());
    refused += !complaint(damaged).empty();  // anything but InvalidInput escapes and fails the test
  }
  EXPECT_GT(refused, static_cast<int>(text.size() / 3));
}

TEST(Witness, MalformedFieldsAreNamed) {
  const std::string good = witness_text(collapse_pair());
  const std::string x = "\"shape\": [1, 2]";
  struct {
    const char *what, *by, *expected;
  } const cases[] = {
      {"sumzero-case/1", "sumzero-case/2", "sumzero-case/2"},
      {"\"schema\": \"sumzero-case/1\",", "", "'schema' is missing"},
      {"\"cross_entropy\"", "\"crossentropy\"", "unknown operator 'crossentropy'"},
      {"\"cross_entropy\"", "17", "field operator: is a number"},
      {"\"storage\": \"f32\"", "\"storage\": \"f31\"", "field storage: unknown format"},
      {"\"storage\": \"f32\"", "\"storage\": \"index\"", "storage format must be"},
      {"\"extents\": [1, 2]", "\"extents\": [1, 1000000000000000000]", "field extents"},
      {"\"extents\": [1, 2]", "\"extents\": [4611686018427387904, 4611686018427387904]", "more elements than 64 bits"},
      {"\"extents\": [1, 2]", "\"extents\": [-1, 2]", "field extents[0]: -1 is outside"},
      {"\"extents\": [1, 2]", "\"extents\": [0, 2]", "field extents[0]: 0 is outside"},
      {"\"extents\": [1, 2]", "\"extents\": [1, 2e0]", "whole number"},
      {"\"extents\": [1, 2]", "\"extents\": [1, 18446744073709551615]", "whole number"},
      {"\"extents\": [1, 2]", "\"extents\": [1]", "needs the 2 extents rows, classes"},
      {"\"extents\": [1, 2]", "\"extents\": {}", "field extents: is an object"},
      {"\"extents\": [1, 2]", "\"extents\": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "17 axes"},
      {"\"extents\": [1, 2]", "\"extents\": [1, 3]", "shape [1, 2]"},
      {"\"mean\"", "\"average\"", "field attributes.reduction: unknown choice; known: none, sum, mean"},
      {"\"mean\"", "2", "field attributes.reduction: is a number where a string"},
      {"\"reduction\"", "\"reductoin\"", "no such attribute"},
      {"\"reduction\": \"mean\"", "\"label_smoothing\": 1e999", "no double"},
      {"\"reduction\": \"mean\"", "\"label_smoothing\": 2", "at most 1"},
      {"\"reduction\": \"mean\"", "\"label_smoothing\": \"nan\"", "label_smoothing"},
      {"\"reduction\": \"mean\"", "\"label_smoothing\": \"--1\"", "'--1' is not a number"},
      {"\"x\": {", "\"y\": {", "unknown input 'y'"},
      {"\"label\": {", "\"x\": {", "field 'inputs.x': the key occurs twice"},
      {"\"extents\"", "\"extent\"", "unknown field 'extent'"},
      {"\"format\": \"f32\"", "\"format\": \"f8\"", "field inputs.x.format: unknown format"},
      {"\"format\": \"f32\"", "\"format\": \"f64\"", "has format f64"},
      {"\"shape\": [1, 2]", "\"shape\": [1, 1000000000000000000]", "shape"},
      {"\"shape\": [1, 2]", "\"shape\": [-1, 2]", "field inputs.x.shape[0]: -1"},
      {"\"strides\": [2, 1]", "\"strides\": [2, 2]", "strides reach"},
      {"\"strides\": [2, 1]", "\"strides\": [2]", "one stride for each axis"},
      {"\"strides\": [2, 1]", "\"strides\": [2, 9223372036854775807]", "a stride of 9223372036854775807"},
      {"\"strides\": [2, 1]", "\"strides\": [2, -9223372036854775808]", "a stride of -9223372036854775808"},
      {"\"elements\": 2", "\"elements\": 3", "field inputs.x.elements: 3 announced"},
      {"\"elements\": 2", "\"elements\": -2", "not a count"},
      {"\"0x0p+0\"]", "\"0x0p+0\", \"0x0p+0\"]", "2 announced, but there are 3"},
      {", \"0x0p+0\"]", "]", "2 announced, but there are 1"},
      {"\"0x1.1p+4\"", "\"0x1.0000001p+4\"", "not a number of format f32"},
      {"\"0x1.1p+4\"", "0.1", "not a number of format f32"},
      {"\"0x1.1p+4\"", "1e39", "not a number of format f32"},
      {"\"0x1.1p+4\"", "\"0x1.1p+4 \"", "is not a number"},
      {"\"0x1.1p+4\"", "\"seventeen\"", "field inputs.x.data[0]: 'seventeen' is not a number"},
      {"\"0x1.1p+4\"", "\"0x\"", "is not a number"},
      {"\"0x1.1p+4\"", "\"0x1p+9999\"", "is not a number"},
      {"\"0x1.1p+4\"", "null", "is null where a number"},
      {"\"0x1.1p+4\"", "[]", "is an array where a number"},
      {"\"data\": [0]", "\"data\": [2]", "label 2 of row 0 is outside"},
      {"\"data\": [0]", "\"data\": [0.0]", "whole number"},
      {"\"data\": [0]", "\"data\": \"0\"", "is a string where an array"},
      {"\"data\": [0]", "\"base64\": \"AAAAAAAAAA\"", "not base64"},
      {"\"data\": [0]", "\"base64\": \"AAAA\"", "no whole number of index"},
      {"\"data\": [0]", "\"data\": [0], \"base64\": \"AAAAAAAAAAA=\"", "exactly one"},
      {"\"data\": [0]", "\"note\": 1", "unknown field 'note'"},
      {"\"data\": [0]", "\"data\": []", "announced"},
      {"\"attributes\": {", "\"attributes\": [", "line "},
  };
  EXPECT_NE(good.find(x), std::string::npos);
  for (const auto& item : cases) {
    const std::string message = complaint(replaced(good, item.what, item.by));
    EXPECT_NE(message.find(item.expected), std::string::npos) << item.by << "\ngave: " << message;
    EXPECT_NE(message.find("pair.json"), std::string::npos) << message;
  }
  EXPECT_NE(complaint("null").find("is null where an object"), std::string::npos);
  EXPECT_NE(complaint("").find("line 1, column 1"), std::string::npos);
  EXPECT_NE(complaint(std::string(100000, '[')).find("nested deeper"), std::string::npos);
  EXPECT_NE(complaint(good + "x"), "");
  EXPECT_NE(complaint("\xff\xfe{}"), "");
}

TEST(Witness, OffsetsOutsideTheStorageAreRefused) {
  const std::string good = witness_text(collapse_pair());
  for (const char* offset : {"1", "2", "-1", "9223372036854775807", "1e18"}) {
    std::string text = good;
    const std::size_t at = text.rfind("\"offset\": 0");
    text.replace(at, 11, std::string("\"offset\": ") + offset);
    EXPECT_NE(complaint(text), "") << offset;
  }
}

// One byte an element: the last index does not overflow by being scaled, so only the offset itself can be refused.
TEST(Witness, OffsetsAtTheEndOfTheIndexRangeAreRefused) {
  const auto text = [](const std::string& offset) {
    return R"({"schema": "sumzero-case/1", "operator": "softmax.scaled_masked", "storage": "f32", "extents": [1, 1],
      "inputs": {"x": {"format": "f32", "shape": [1, 1], "data": [1]},
      "mask": {"format": "bool", "shape": [1, 1], "elements": 1, "data": [1], "offset": )" + offset + "}}}";
  };
  EXPECT_EQ(complaint(text("0")), "");
  EXPECT_NE(complaint(text("9223372036854775807")).find("leaves the 1 stored elements"), std::string::npos);
}

// A text of 300 bytes whose strides broadcast one element to 10^18: the size is checked before anything is allocated.
TEST(Witness, BroadcastShapesMustBeBackedByData) {
  const auto text = [](const std::string& rows) {
    return R"({"schema": "sumzero-case/1", "operator": "softmax", "storage": "f32", "extents": [)" + rows +
           R"(, 1], "inputs": {"x": {"format": "f32", "shape": [)" + rows + R"(, 1], "strides": [0, 1], "data": [1]}}})";
  };
  EXPECT_EQ(complaint(text("1000")), "");
  EXPECT_NE(complaint(text("1000000000000000000")).find("announce 1000000000000000000 elements, but 1 are stored"),
            std::string::npos);
  EXPECT_NE(complaint(text("100000000")), "");
}

TEST(Witness, ContiguousDataMustFitWithoutAnAnnouncedCount) {
  const auto text = [](const std::string& data) {
    return R"({"schema": "sumzero-case/1", "operator": "softmax", "storage": "f32", "extents": [1, 2],
      "inputs": {"x": {"format": "f32", "shape": [1, 2], "data": [)" + data + "]}}}";
  };
  EXPECT_EQ(complaint(text("1, 2")), "");
  EXPECT_NE(complaint(text("1, 2, 3")).find("3 stored elements where shape and strides need 2"), std::string::npos);
  EXPECT_NE(complaint(text("1")), "");
}

TEST(Json, NumbersAsTextReadBackExactly) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 20000; ++i) {
    double value = std::bit_cast<double>(random());
    if (i % 4 == 0) value = std::bit_cast<double>(random() >> 12);  // subnormal
    for (const std::string& text : {hex_text(value), decimal_text(value), exact_text(value)}) {
      const std::optional<double> back = number_from_text(text);
      ASSERT_TRUE(back) << text;
      if (std::isnan(value)) EXPECT_TRUE(std::isnan(*back));
      else ASSERT_EQ(std::bit_cast<std::uint64_t>(*back), std::bit_cast<std::uint64_t>(value)) << text;
    }
  }
  for (const char* wrong : {"", "-", "+1", "infinity", "NaN", "-nan", "0x", "1,5", "1 ", " 1", "0xg", "1e", "--1", "0x-1"})
    EXPECT_FALSE(number_from_text(wrong)) << wrong;
}

TEST(Json, Base64) {
  // RFC 4648, section 10.
  const std::pair<std::string, std::string> vectors[] = {{"", ""},         {"f", "Zg=="},         {"fo", "Zm8="},
                                                         {"foo", "Zm9v"},  {"foob", "Zm9vYg=="},  {"fooba", "Zm9vYmE="},
                                                         {"foobar", "Zm9vYmFy"}};
  for (const auto& [plain, coded] : vectors) {
    const auto* bytes = reinterpret_cast<const std::byte*>(plain.data());
    EXPECT_EQ(base64(bytes, plain.size()), coded);
    EXPECT_EQ(bytes_from_base64(coded), std::vector<std::byte>(bytes, bytes + plain.size()));
  }
  for (const char* wrong : {"Z", "Zg", "Zg=", "Zh==", "Zm9=", "=g==", "Z===", "====", "Zg==Zg==", "Zm9v\n", "Zm-v"})
    EXPECT_FALSE(bytes_from_base64(wrong)) << wrong;
}

}  // namespace
}  // namespace sumzero
