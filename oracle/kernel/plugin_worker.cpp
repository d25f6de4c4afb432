#include "oracle/kernel/plugin_worker.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>

#include "oracle/kernel/message.hpp"
#include "oracle/kernel/sumzero_plugin.h"
#include "reference/case.hpp"

namespace sumzero {
namespace {

using nlohmann::json;

const sumzero_plugin& load(const std::string& path) {
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw InvalidInput(std::string("it cannot be loaded: ") + ::dlerror());
  void* symbol = ::dlsym(library, "sumzero_plugin_table");
  if (!symbol) throw InvalidInput("it does not export sumzero_plugin_table; include sumzero_plugin.h, define the function, and export it");
  const sumzero_plugin* table = reinterpret_cast<const sumzero_plugin* (*)()>(symbol)();
  if (!table) throw InvalidInput("sumzero_plugin_table returned no table");
  if (table->abi_version != SUMZERO_ABI_VERSION)
    throw InvalidInput(fmt::format("it has ABI version {} and this tool loads {}; compile it with the sumzero_plugin.h of this version",
                                   table->abi_version, SUMZERO_ABI_VERSION));
  if (!table->name || !table->operators || !table->dtypes || !table->run)
    throw InvalidInput("its table lacks name, operators, dtypes or run; fill them in");
  return *table;
}

json list_of(const char* const* texts) {
  json result = json::array();
  for (; texts && *texts; ++texts) result.push_back(*texts);
  return result;
}

json contract_of(const sumzero_contract* contract) {
  json result = json::object();
  if (!contract) return result;
  const auto text = [&](const char* field, const char* value) {
    if (value) result[field] = value;
  };
  const auto error = [&](const char* field, double value) {
    if (value != 0) result[field] = value;
  };
  const auto flag = [&](const char* field, int value) {
    if (value != SUMZERO_UNKNOWN) result[field] = value == SUMZERO_YES;
  };
  text("accumulator", contract->accumulator);
  error("exp_error", contract->exp_error);
  error("log_error", contract->log_error);
  error("expm1_error", contract->expm1_error);
  if (contract->summation) {
    result["summation"] = {{"kind", contract->summation}};
    if (contract->summation_width > 0) result["summation"]["width"] = contract->summation_width;
    if (contract->summation_flush_every > 0) result["summation"]["flush_every"] = contract->summation_flush_every;
  }
  flag("flush_to_zero", contract->flush_to_zero);
  flag("compensated_shift", contract->compensated_shift);
  flag("reciprocal", contract->reciprocal);
  flag("deterministic", contract->deterministic);
  flag("monotone", contract->monotone);
  flag("policies", contract->policies);
  flag("stores_intermediates", contract->stores_intermediates);
  text("note", contract->note);
  return result;
}

json description(const sumzero_plugin& plugin) {
  return {{"protocol", worker_protocol},      {"name", plugin.name},
          {"operators", list_of(plugin.operators)}, {"dtypes", list_of(plugin.dtypes)},
          {"outputs", list_of(plugin.outputs)},     {"contract", contract_of(plugin.contract)},
          {"shared_memory", true}};
}

DLDataType type_of(const std::string& format) {
  static const std::pair<const char*, DLDataType> types[] = {
      {"f64", {kDLFloat, 64, 1}},     {"f32", {kDLFloat, 32, 1}},         {"bf16", {kDLBfloat, 16, 1}},     {"f16", {kDLFloat, 16, 1}},
      {"index", {kDLInt, 64, 1}},     {"bool", {SUMZERO_BOOL, 8, 1}},     {"e4m3", {SUMZERO_E4M3FN, 8, 1}}, {"e5m2", {SUMZERO_E5M2, 8, 1}}};
  for (const auto& [name, type] : types)
    if (format == name) return type;
  throw InvalidInput("format " + format + " has no type in sumzero_plugin.h");
}

/// The tensors of one call; owns what the pointers of sumzero_call point to.
class PluginCall {
 public:
  PluginCall(const json& head, std::byte* memory) {
    add(head.at("inputs"), memory, inputs_);
    add(head.at("outputs"), memory, outputs_);
    const json& changed = head.at("changed");
    for (const auto& [name, value] : head.at("attributes").items()) {
      const bool differs = std::find(changed.begin(), changed.end(), json(name)) != changed.end();
      const char* choice = value.is_string() ? keep(value.get<std::string>()) : nullptr;
      attributes_.push_back({keep(name), choice ? 0 : value.get<double>(), choice, differs});
    }
    call_.op = keep(head.at("run").get<std::string>());
    call_.dtype = keep(head.at("dtype").get<std::string>());
    call_.threads = head.at("threads").get<int>();
    call_.inputs = inputs_.size();
    call_.outputs = outputs_.size();
    call_.attributes = attributes_.size();
    call_.input = inputs_.data();
    call_.output = outputs_.data();
    call_.attribute = attributes_.data();
  }
  const sumzero_call* get() const { return &call_; }

 private:
  const char* keep(std::string text) { return texts_.emplace_back(std::move(text)).c_str(); }
  std::int64_t* keep(const json& list) { return extents_.emplace_back(list.get<std::vector<std::int64_t>>()).data(); }

  void add(const json& list, std::byte* memory, std::vector<sumzero_tensor>& to) {
    for (const json& item : list) {
      sumzero_tensor& named = to.emplace_back();
      named.name = keep(item.at("name").get<std::string>());
      DLTensor& tensor = named.tensor;
      tensor.data = memory + item.at("first").get<std::size_t>();
      tensor.device = {kDLCPU, 0};
      tensor.ndim = static_cast<int>(item.at("shape").size());
      tensor.dtype = type_of(item.at("format").get_ref<const std::string&>());
      tensor.shape = keep(item.at("shape"));
      tensor.strides = keep(item.at("strides"));
      tensor.byte_offset = 0;
    }
  }

  std::deque<std::string> texts_;
  std::deque<std::vector<std::int64_t>> extents_;
  std::vector<sumzero_tensor> inputs_, outputs_;
  std::vector<sumzero_attribute> attributes_;
  sumzero_call call_{};
};

class Mapping {
 public:
  ~Mapping() {
    if (address_) ::munmap(address_, size_);
  }
  std::byte* of(std::size_t size) {
    if (size <= size_) return static_cast<std::byte*>(address_);
    if (address_) ::munmap(address_, size_);
    address_ = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, worker_memory, 0);
    if (address_ == MAP_FAILED) {
      address_ = nullptr;
      size_ = 0;
      throw InvalidInput(std::string("shared memory cannot be mapped: ") + std::strerror(errno));
    }
    size_ = size;
    return static_cast<std::byte*>(address_);
  }

 private:
  void* address_ = nullptr;
  std::size_t size_ = 0;
};

json run(const sumzero_plugin& plugin, const json& head, Mapping& mapping) {
  const PluginCall call(head, mapping.of(head.at("memory").get<std::size_t>()));
  const int code = plugin.run(call.get());
  if (code == SUMZERO_OK) return {{"done", true}};
  const char* said = plugin.last_error ? plugin.last_error() : nullptr;
  const std::string text = said && *said ? said : fmt::format("run returned {} and gave no reason", code);
  return {{code == SUMZERO_REFUSED ? "refused" : "error", text}};
}

}  // namespace

int serve_plugin(const std::string& path) {
  // What the library prints must not meet the protocol.
  const int out = ::fcntl(1, F_DUPFD_CLOEXEC, 10);
  if (out < 0 || ::dup2(2, 1) < 0) return 2;
  Channel channel(0, out);
  const sumzero_plugin* plugin = nullptr;
  Mapping mapping;
  while (const std::optional<Message> message = channel.receive(0)) {
    json answer;
    try {
      if (!plugin) plugin = &load(path);
      answer = message->head.contains("describe") ? description(*plugin) : run(*plugin, message->head, mapping);
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
    }
    if (!channel.send(answer.dump(-1, ' ', false, json::error_handler_t::replace), {})) break;
  }
  return 0;
}

}  // namespace sumzero
