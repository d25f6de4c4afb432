#include "fuzz/bench.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <iostream>
#include <string_view>
#include <vector>

#include "oracle/file.hpp"
#include "oracle/json.hpp"
#include "oracle/judge.hpp"
#include "oracle/kernel/guarded_run.hpp"

namespace sumzero {
namespace {

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Medians of several subjects measured in turns, so that drift of the machine hits all alike.
std::vector<double> medians(const std::vector<std::function<void()>>& subjects, int rounds) {
  std::vector<std::vector<double>> times(subjects.size());
  for (const auto& subject : subjects) subject();  // warm
  for (int round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < subjects.size(); ++i) times[i].push_back(seconds_of(subjects[i]));
  std::vector<double> result;
  for (auto& t : times) {
    std::nth_element(t.begin(), t.begin() + static_cast<std::ptrdiff_t>(t.size() / 2), t.end());
    result.push_back(t[t.size() / 2]);
  }
  return result;
}

/// A batch of logits with upstream, values spread like a trained model's.
Case batch(const std::string& op, std::int64_t rows, std::int64_t n, bool upstream) {
  Case result;
  result.op = op;
  result.storage = Format::f32;
  result.extents = {rows, n};
  std::uint32_t state = 12345;
  for (const char* input : {"x", "g"}) {
    if (!upstream && input[0] == 'g') continue;
    Tensor tensor = Tensor::contiguous(Format::f32, {rows, n});
    auto* values = reinterpret_cast<float*>(tensor.bytes.data());
    for (std::int64_t i = 0; i < rows * n; ++i) {
      state = state * 1664525u + 1013904223u;
      values[i] = static_cast<float>(state >> 8) * 0x1p-24f * 16 - 8;
    }
    result.inputs[input] = std::move(tensor);
  }
  return result;
}

/// One head of self-attention over n keys, head and value size 64, f32.
Case attention(std::int64_t n, bool upstream) {
  Case result;
  result.op = "sdpa";
  result.storage = Format::f32;
  result.extents = {1, 1, 1, n, n, 64, 64};
  result.attributes["tau"] = 0.125;
  for (const char* input : {"q", "k", "v", "go"})
    if (upstream || std::string_view(input) != "go") {
      Case numbers = batch("", n, 64, false);
      numbers.inputs["x"].shape = {1, 1, n, 64}, numbers.inputs["x"].strides = {n * 64, n * 64, 64, 1};
      result.inputs[input] = std::move(numbers.inputs["x"]);
    }
  return result;
}

std::vector<Tensor> outputs_for(const Signature& signature, const Case& input, const std::vector<std::string>& wanted) {
  std::vector<Tensor> outputs;
  for (const OutputSpec& spec : signature.outputs) {
    const bool take = std::find(wanted.begin(), wanted.end(), spec.name) != wanted.end();
    outputs.push_back(take ? Tensor::contiguous(element_format(spec.element, input.storage), tensor_shape(spec.shape, input, Reduction::none)) : Tensor{});
  }
  return outputs;
}

void bench_filter(bool quick, nlohmann::json& figures) {
  const OperatorReference& reference = Registry::global().operator_named("log_softmax");
  const Kernel& kernel = Registry::global().kernel_named("log_softmax", "fast.plain", Format::f32);
  const Judge judge(reference, kernel, Format::f32);
  const std::int64_t n = 1024;
  const Case many = batch("log_softmax", 64, n, true), one = batch("log_softmax", 1, n, true);
  std::vector<Tensor> outputs = outputs_for(reference.signature(), many, {"logp", "gx"});
  std::vector<Tensor> outputs_one = outputs_for(reference.signature(), one, {"logp", "gx"});
  kernel.run(Call{reference.signature(), one, outputs_one, 1});
  const std::vector<double> t = medians({[&] { kernel.run(Call{reference.signature(), many, outputs, 1}); },
                                         [&] { judge.judge(many, outputs); },
                                         [&] { judge.judge_with_enclosure(one, outputs_one, 256); }},
                                        quick ? 5 : 15);
  const double kernel_ns = t[0] * 1e9 / (64.0 * static_cast<double>(n)), filter_ns = t[1] * 1e9 / (64.0 * static_cast<double>(n)),
               enclosure_ns = t[2] * 1e9 / static_cast<double>(n);
  std::cout << fmt::format(
      "judging log_softmax f32, n = {}, value and gradient, ns per element\n"
      "  kernel fast.plain {:8.2f}   filter {:8.2f} = {:.1f} x kernel   Enclosure, 256 bits {:8.0f} = {:.0f} x filter\n\n",
      n, kernel_ns, filter_ns, filter_ns / kernel_ns, enclosure_ns, enclosure_ns / filter_ns);
  figures["filter_over_kernel"] = filter_ns / kernel_ns;
  figures["enclosure_over_filter"] = enclosure_ns / filter_ns;
}

void bench_kernels(const std::string& op, const std::string& output, bool quick, nlohmann::json& figures) {
  const OperatorReference& reference = Registry::global().operator_named(op);
  std::vector<const Kernel*> kernels;
  for (const char* kernel_name : {"fast", "fast.plain", "onednn", "textbook.torch_cpu"})
    for (const Kernel* kernel : Registry::global().kernels(op))
      if (kernel->name == kernel_name && kernel->supports(Format::f32)) kernels.push_back(kernel);
  std::cout << fmt::format("{} f32 forward, one thread, ns per element; in brackets the speed relative to oneDNN\n", op);
  std::cout << fmt::format("  {:>7} {:>9} {:>8}", "n", "working", "copy");
  for (const Kernel* kernel : kernels) std::cout << fmt::format(" {:>24}", kernel->name);
  std::cout << '\n';
  for (const std::int64_t n : {128, 1024, 32000, 128256})
    for (const bool in_cache : {true, false}) {
      const std::int64_t target = in_cache ? 1 << 15 : (quick ? 1 << 24 : 1 << 25);
      const std::int64_t rows = std::max<std::int64_t>(1, target / n);
      const Case input = batch(op, rows, n, false);
      std::vector<Tensor> outputs = outputs_for(reference.signature(), input, {output});
      const Tensor& x = input.inputs.at("x");
      Tensor copy = x;
      // Small batches are repeated so that one measurement lasts long enough.
      const int repeats = static_cast<int>(std::max<std::int64_t>(1, (std::int64_t{1} << 19) / (rows * n)));
      std::vector<std::function<void()>> subjects;
      subjects.push_back([&] { for (int r = 0; r < repeats; ++r) std::memcpy(copy.bytes.data(), x.bytes.data(), x.bytes.size()); });
      for (const Kernel* kernel : kernels)
        subjects.push_back([&, kernel] { for (int r = 0; r < repeats; ++r) kernel->run(Call{reference.signature(), input, outputs, 1}); });
      const std::vector<double> t = medians(subjects, in_cache ? (quick ? 15 : 41) : (quick ? 3 : 7));
      const double scale = 1e9 / (static_cast<double>(rows * n) * repeats);
      double peer = 0;
      for (std::size_t k = 0; k < kernels.size(); ++k)
        if (kernels[k]->name == "onednn") peer = t[k + 1];
      std::cout << fmt::format("  {:>7} {:>6} KB {:>8.3f}", n, rows * n * 8 / 1024, t[0] * scale);
      for (std::size_t k = 0; k < kernels.size(); ++k) {
        std::cout << fmt::format(" {:>14.3f} [{:>6.2f}x]", t[k + 1] * scale, peer > 0 ? peer / t[k + 1] : 0.0);
        const std::string key = fmt::format("{}/{}/{}/{}", op, kernels[k]->name, n, in_cache ? "in_cache" : "out_of_cache");
        if (peer > 0) figures[key + "/speed_over_onednn"] = peer / t[k + 1];
        figures[key + "/time_over_copy"] = t[k + 1] / t[0];
      }
      std::cout << '\n' << std::flush;
    }
  std::cout << '\n';
}

/// Forward, and forward with backward, against OpenBLAS; how the time grows with the number of keys and queries.
void bench_attention(bool quick, nlohmann::json& figures) {
  const OperatorReference& reference = Registry::global().operator_named("sdpa");
  std::vector<const Kernel*> kernels;
  for (const char* kernel_name : {"openblas", "fast.plain", "fast"})
    for (const Kernel* kernel : Registry::global().kernels("sdpa"))
      if (kernel->name == kernel_name) kernels.push_back(kernel);
  const bool peer = kernels[0]->name == "openblas";
  for (const bool backward : {false, true}) {
    std::cout << fmt::format("sdpa f32 {}, one head of size 64, one thread, ms; in brackets the speed relative to OpenBLAS{}\n", backward ? "forward and backward" : "forward",
                             peer ? "" : " (absent)");
    std::cout << fmt::format("  {:>7}", "n");
    for (const Kernel* kernel : kernels) std::cout << fmt::format(" {:>24}", kernel->name);
    std::cout << '\n';
    std::vector<std::vector<double>> logs(kernels.size());  // of the time, by kernel
    for (const std::int64_t n : {256, 512, 1024, 2048}) {
      const Case input = attention(n, backward);
      std::vector<Tensor> outputs = outputs_for(reference.signature(), input, backward ? std::vector<std::string>{"o", "gq", "gk", "gv"} : std::vector<std::string>{"o"});
      const int repeats = static_cast<int>(std::max<std::int64_t>(1, (1 << 20) / (n * n)));
      std::vector<std::function<void()>> subjects;
      for (const Kernel* kernel : kernels)
        subjects.push_back([&, kernel] { for (int r = 0; r < repeats; ++r) kernel->run(Call{reference.signature(), input, outputs, 1}); });
      const std::vector<double> t = medians(subjects, quick ? 7 : 21);
      std::cout << fmt::format("  {:>7}", n);
      for (std::size_t k = 0; k < kernels.size(); ++k) {
        std::cout << fmt::format(" {:>14.3f} [{:>6.2f}x]", t[k] * 1e3 / repeats, peer ? t[0] / t[k] : 0.0);
        logs[k].push_back(std::log2(t[k] / repeats));
        if (peer) figures[fmt::format("sdpa/{}/{}/{}/speed_over_openblas", kernels[k]->name, n, backward ? "backward" : "forward")] = t[0] / t[k];
      }
      std::cout << '\n' << std::flush;
    }
    std::cout << fmt::format("  {:>7}", "slope");
    for (std::size_t k = 0; k < kernels.size(); ++k) {
      // Least squares through four points one doubling apart.
      const double slope = (3 * (logs[k][3] - logs[k][0]) + logs[k][2] - logs[k][1]) / 10;
      std::cout << fmt::format(" {:>24.2f}", slope);
      figures[fmt::format("sdpa/{}/{}/exponent", kernels[k]->name, backward ? "backward" : "forward")] = slope;
    }
    std::cout << "\n\n";
  }
}

}  // namespace

Exit run_bench(const BenchOptions& options) {
  nlohmann::json figures = nlohmann::json::object();
  bench_filter(options.quick, figures);
  bench_kernels("softmax", "p", options.quick, figures);
  bench_kernels("log_softmax", "logp", options.quick, figures);
  bench_attention(options.quick, figures);
  if (!options.json.empty()) write_file(options.json, pretty(nlohmann::json{{"schema", "sumzero-bench/1"}, {"figures", figures}}));
  return Exit::pass;
}

}  // namespace sumzero
