#include "oracle/kernel/worker_kernel.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "oracle/contract.hpp"
#include "oracle/file.hpp"
#include "oracle/json.hpp"
#include "oracle/witness.hpp"
#include "reference/evaluate.hpp"

namespace sumzero {
namespace {

namespace fs = std::filesystem;

/// Tensors start at multiples of this, as DLPack asks.
constexpr std::size_t alignment = 256;
constexpr double starting = 6;  // times the limit of a call

std::vector<std::string> arguments_of(const std::string& text) {
  constexpr std::string_view process = "process:";
  if (text.starts_with(process)) {
    if (text.size() == process.size()) throw InvalidInput("kernel 'process:' names no command; write process:COMMAND");
    return {"/bin/sh", "-c", "exec " + text.substr(process.size())};
  }
  if (!fs::is_regular_file(text))
    throw InvalidInput("kernel '" + text + "': no such file; give a .py or .so file, process:COMMAND, or a name of `sumzero list`");
  const std::string path = fs::absolute(text).string();
  if (text.ends_with(".so")) return {executable().string(), "worker", path};
  const char* python = std::getenv("SUMZERO_PYTHON");
  if (text.ends_with(".py")) return {python && *python ? python : "python3", path};
  if (::access(path.c_str(), X_OK) == 0) return {path};
  throw InvalidInput("kernel '" + text + "' is neither a .py nor a .so file, nor executable; start it with process:COMMAND");
}

/// The tool's own, plus the folder of sumzero.py, which is installed beside the tool.
std::vector<std::string> worker_environment() {
  std::vector<std::string> result;
  std::string path = shared_file("python").string();
  for (char** variable = environ; *variable; ++variable) {
    const std::string_view text = *variable;
    if (text.starts_with("PYTHONPATH=")) path += ":" + std::string(text.substr(11));
    else result.emplace_back(text);
  }
  result.push_back("PYTHONPATH=" + path);
  return result;
}

struct Description {
  std::string name;
  std::vector<std::string> operators, outputs;
  std::vector<Format> formats;
  std::map<Format, Contract> contracts;
  bool shared_memory = false;
};

std::vector<std::string> texts(const JsonValue& value) {
  std::vector<std::string> result;
  for (const JsonValue& item : value.items()) result.push_back(item.text());
  return result;
}

Description description_from(const nlohmann::json& head, const std::string& text) {
  const JsonValue value(head, "the description of kernel '" + text + "'");
  if (const auto error = value.find("error")) throw InvalidInput("kernel '" + text + "' cannot be opened: " + error->text());
  value.only({"protocol", "name", "operators", "dtypes", "outputs", "contract", "shared_memory"});
  if (value.at("protocol").integer() != worker_protocol)
    value.at("protocol").fail(fmt::format("this tool speaks protocol {}; use the sumzero.py or sumzero_plugin.h of this version", worker_protocol));
  Description result;
  result.name = value.at("name").text();
  if (result.name.empty() || is_foreign_kernel(result.name)) value.at("name").fail("must be a plain name without slashes; choose another");
  result.operators = texts(value.at("operators"));
  if (result.operators.empty()) value.at("operators").fail("is empty; name at least one operator");
  for (const JsonValue& dtype : value.at("dtypes").items()) {
    const std::optional<Format> format = floating_format_named(dtype.text());
    if (!format) dtype.fail(fmt::format("unknown dtype '{}'; known: {}", dtype.text(), floating_format_names));
    result.formats.push_back(*format);
  }
  if (result.formats.empty()) value.at("dtypes").fail("is empty; name at least one dtype");
  if (const auto outputs = value.find("outputs")) result.outputs = texts(*outputs);
  if (const auto shared = value.find("shared_memory")) result.shared_memory = shared->flag();
  static const nlohmann::json nothing = nlohmann::json::object();
  const JsonValue contract = value.find("contract").value_or(JsonValue(nothing, value.source()));
  for (const Format format : result.formats) {
    Contract unknown = default_contract(format);
    unknown.policies = false;
    result.contracts[format] = contract_from(contract, unknown);
  }
  return result;
}

/// A file that holds the case which a worker runs, and is empty between two. One file for many cases: creating and removing
/// one each would halve the speed of a campaign. It is removed with this object.
class RunningFile {
 public:
  explicit RunningFile(const fs::path& folder) {
    if (folder.empty()) return;
    static std::atomic<std::uint64_t> serial{0};
    path_ = folder / fmt::format("{}-{}.json", ::getpid(), serial++);
    write_file(path_, "");
    file_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  }
  ~RunningFile() {
    if (file_ < 0) return;
    ::close(file_);
    std::error_code error;
    fs::remove(path_, error);
  }
  RunningFile(const RunningFile&) = delete;
  RunningFile& operator=(const RunningFile&) = delete;

  void hold(const Case& input) {
    if (path_.empty()) return;
    const std::string text = to_json(input, 0).dump();
    const auto size = static_cast<ssize_t>(text.size());
    if (::pwrite(file_, text.data(), text.size(), 0) != size || ::ftruncate(file_, size) != 0)
      throw InvalidInput(path_.string() + ": cannot be written (" + std::strerror(errno) + "); make room or choose another --out");
  }
  void clear() {
    if (file_ >= 0 && ::ftruncate(file_, 0) != 0) return;  // the next case overwrites it
  }

 private:
  fs::path path_;
  int file_ = -1;
};

/// The workers of one foreign kernel: one per thread that runs a case, kept for the next.
class WorkerPool {
 public:
  WorkerPool(std::string text, WorkerOptions options)
      : text_(std::move(text)), arguments_(arguments_of(text_)), environment_(worker_environment()), options_(std::move(options)) {
    auto worker = std::make_unique<WorkerProcess>(arguments_, environment_, options_.limits);
    description_ = description_from(describe(*worker), text_);
    idle_.push_back(std::unique_ptr<Place>(new Place{std::move(worker), RunningFile(options_.running)}));
  }

  const Description& description() const { return description_; }
  const WorkerOptions& options() const { return options_; }
  void set_options(const WorkerOptions& options) {
    const std::scoped_lock lock(mutex_);
    idle_.clear();
    options_ = options;
  }

  /// One worker and the file of its case; the process is empty before the first call and after one that it did not survive.
  struct Place {
    std::unique_ptr<WorkerProcess> process;
    RunningFile running;
  };

  std::unique_ptr<Place> take() {
    const std::scoped_lock lock(mutex_);
    if (idle_.empty()) return std::unique_ptr<Place>(new Place{nullptr, RunningFile(options_.running)});
    auto place = std::move(idle_.back());
    idle_.pop_back();
    return place;
  }
  void give_back(std::unique_ptr<Place> place) {
    const std::scoped_lock lock(mutex_);
    idle_.push_back(std::move(place));
  }

  std::unique_ptr<WorkerProcess> start() const {
    auto worker = std::make_unique<WorkerProcess>(arguments_, environment_, options_.limits);
    if (describe(*worker).value("name", "") != description_.name)
      throw Crashed("the worker described itself differently when it was started again");
    return worker;
  }

 private:
  nlohmann::json describe(WorkerProcess& worker) const {
    return worker.ask(fmt::format("{{\"describe\":{}}}", worker_protocol), {}, 0, starting * options_.limits.seconds).head;
  }

  std::string text_;
  std::vector<std::string> arguments_, environment_;
  WorkerOptions options_;
  Description description_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Place>> idle_;
};

/// Places of tensors in the block of memory that a worker sees, and the head that says so.
class RunMessage {
 public:
  RunMessage(const Call& call, bool shared) {
    const Signature& signature = call.signature;
    nlohmann::json inputs = nlohmann::json::array(), outputs = inputs, changed = inputs, attributes = nlohmann::json::object();
    bool gradients = false;
    for (std::size_t i = 0; i < signature.outputs.size(); ++i) gradients |= !call.outputs[i].bytes.empty() && signature.outputs[i].gradient_of >= 0;
    for (const InputSpec& spec : signature.inputs) {
      // A kernel without gradients need not know their upstream.
      if (spec.role == Role::upstream && !gradients) continue;
      if (const auto found = call.input.inputs.find(spec.name); found != call.input.inputs.end()) add(spec.name, found->second, inputs);
    }
    inputs_ = places_.size();
    for (std::size_t i = 0; i < signature.outputs.size(); ++i)
      if (!call.outputs[i].bytes.empty()) add(signature.outputs[i].name, call.outputs[i], outputs);
    const std::vector<double> values = attribute_values(signature, call.input);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const AttributeSpec& spec = signature.attributes[i];
      attributes[spec.name] = choice_or_number(spec, values[i]);
      if (values[i] != spec.default_value) changed.push_back(spec.name);
    }
    const nlohmann::json head = {{"run", signature.name},     {"dtype", name(call.input.storage)},
                                 {"threads", call.threads},   {shared ? "memory" : "bytes", size_},
                                 {"attributes", std::move(attributes)}, {"changed", std::move(changed)},
                                 {"inputs", std::move(inputs)},         {"outputs", std::move(outputs)}};
    head_ = head.dump();
  }

  const std::string& head() const { return head_; }
  std::size_t size() const { return size_; }

  void write(std::byte* block) const {
    for (const Place& place : places_) std::memcpy(block + place.at, place.tensor->bytes.data(), place.tensor->bytes.size());
  }
  /// Throws InputMutated when an input is not what was written.
  void read(const std::byte* block, std::vector<Tensor>& outputs) const {
    for (std::size_t i = 0; i < inputs_; ++i)
      if (std::memcmp(block + places_[i].at, places_[i].tensor->bytes.data(), places_[i].tensor->bytes.size()) != 0)
        throw InputMutated("input '" + places_[i].name + "' changed during the call");
    std::size_t next = inputs_;
    for (Tensor& output : outputs)
      if (!output.bytes.empty()) std::memcpy(output.bytes.data(), block + places_[next++].at, output.bytes.size());
  }

 private:
  struct Place {
    std::string name;
    const Tensor* tensor;
    std::size_t at;
  };

  void add(const std::string& name, const Tensor& tensor, nlohmann::json& list) {
    places_.push_back({name, &tensor, size_});
    list.push_back({{"name", name}, {"format", sumzero::name(tensor.format)}, {"shape", tensor.shape}, {"strides", tensor.strides},
                    {"first", size_ + static_cast<std::size_t>(tensor.offset * tensor.width())}});
    size_ += (tensor.bytes.size() + alignment - 1) / alignment * alignment;
  }

  std::vector<Place> places_;  // inputs, then outputs
  std::size_t inputs_ = 0, size_ = 0;
  std::string head_;
};

class WorkerKernel final : public Kernel {
 public:
  WorkerKernel(std::shared_ptr<WorkerPool> pool, const std::string& operator_name, const std::string& text) : pool_(std::move(pool)) {
    const Description& description = pool_->description();
    op = operator_name;
    name = description.name;
    aliases = {text};
    summary = "foreign kernel";
    const Signature& signature = Registry::global().operator_named(op).signature();
    for (const std::string& output : description.outputs)
      if (signature.output(output) >= 0) outputs.push_back(output);
    if (outputs.empty() && !description.outputs.empty())
      throw InvalidInput("kernel '" + text + "' offers no output of " + op + ", but '" + description.outputs.front() + "'; see `sumzero list`");
  }

  bool supports(Format storage) const override { return pool_->description().contracts.contains(storage); }
  Contract contract(Format storage) const override { return pool_->description().contracts.at(storage); }

  void run(const Call& call) const override {
    if (!contract(call.input.storage).policies)
      if (const std::string_view policy = changed_policy(call.input); !policy.empty())
        throw Refused("the contract of kernel '" + name + "' does not promise policies; leave " + std::string(policy) + " at its default");
    const auto back = [this](WorkerPool::Place* place) {
      place->running.clear();
      if (place->process && !place->process->alive()) place->process.reset();
      pool_->give_back(std::unique_ptr<WorkerPool::Place>(place));
    };
    const std::unique_ptr<WorkerPool::Place, decltype(back)> place(pool_->take().release(), back);
    place->running.hold(call.input);
    if (!place->process) place->process = pool_->start();
    ask(call, *place->process);
  }

 private:
  void ask(const Call& call, WorkerProcess& worker) const {
    const bool shared = pool_->description().shared_memory;
    const RunMessage message(call, shared);
    std::vector<std::byte> bytes(shared ? 0 : message.size());
    std::byte* block = shared ? worker.memory(message.size()) : bytes.data();
    message.write(block);
    const Message answer = worker.ask(message.head(), bytes, bytes.size(), pool_->options().limits.seconds);
    const auto text = [&](const char* field) -> std::optional<std::string> {
      const auto found = answer.head.find(field);
      if (found == answer.head.end()) return std::nullopt;
      if (!found->is_string()) throw Crashed(fmt::format("the worker broke the protocol: '{}' of its answer is no text", field));
      return valid_utf8(found->get<std::string>());
    };
    if (const auto reason = text("refused")) throw Refused(*reason);
    if (const auto reason = text("error")) throw Crashed("the kernel reported an error: " + *reason);
    if (answer.head.value("done", nlohmann::json()) != true)
      throw Crashed("the worker broke the protocol: it answered " +
                    valid_utf8(answer.head.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)).substr(0, 100) +
                    " instead of done, refused or error");
    if (!shared && answer.bytes.size() != bytes.size())
      throw Crashed(fmt::format("the worker broke the protocol: it answered {} raw bytes where {} are due", answer.bytes.size(), bytes.size()));
    message.read(shared ? block : answer.bytes.data(), call.outputs);
  }

  std::shared_ptr<WorkerPool> pool_;
};

}  // namespace

bool is_foreign_kernel(std::string_view text) {
  return text.starts_with("process:") || text.ends_with(".py") || text.ends_with(".so") || text.find('/') != std::string_view::npos;
}

void open_foreign_kernel(const std::string& text, const WorkerOptions& options) {
  static std::map<std::string, std::shared_ptr<WorkerPool>> opened;
  if (const auto found = opened.find(text); found != opened.end()) return found->second->set_options(options);
  std::shared_ptr<WorkerPool> pool;
  try {
    pool = std::make_shared<WorkerPool>(text, options);
  } catch (const Crashed& crash) {
    throw InvalidInput("kernel '" + text + "' cannot be opened: " + crash.what());
  } catch (const TimedOut& timeout) {
    throw InvalidInput("kernel '" + text + "' cannot be opened: " + timeout.what());
  }
  std::vector<std::unique_ptr<Kernel>> kernels;
  for (const std::string& op : pool->description().operators) {
    auto kernel = std::make_unique<WorkerKernel>(pool, op, text);
    for (const Kernel* known : Registry::global().kernels(op)) {
      const bool taken = known->name == kernel->name || std::find(known->aliases.begin(), known->aliases.end(), kernel->name) != known->aliases.end();
      if (taken && !dynamic_cast<const WorkerKernel*>(known))
        throw InvalidInput("kernel '" + text + "' calls itself '" + kernel->name + "', which is a kernel of this tool; choose another name");
    }
    kernels.push_back(std::move(kernel));
  }
  for (auto& kernel : kernels) Registry::global().add(std::move(kernel));
  opened[text] = pool;
}

}  // namespace sumzero
