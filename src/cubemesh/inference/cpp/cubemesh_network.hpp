// Runs a network of images that `cubemesh export NETWORK --cpp FOLDER` wrote. C++17, nothing else.
//
//     cubemesh::Network network("resnet-18.cmnet");
//     cubemesh::Tensor scores = network({{1, 3, 224, 224}, pixels});
//
// Values are float32 in C order, images (batch, channels, height, width) from 0 to 1. A network does
// not change, so threads may share one. Whatever is wrong with a file or an input is a
// std::runtime_error that says what; what memory cannot hold is a std::bad_alloc.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace cubemesh {

using Shape = std::vector<std::int64_t>;

// The number of values of an array; an error where a length is negative, or where those that are not 0
// are beyond what memory can hold.
inline std::int64_t elements(const Shape& shape) {
  std::int64_t count = 1;
  bool empty = false;
  for (std::int64_t length : shape) {
    if (length < 0 || (length && count > (std::int64_t{1} << 40) / length))
      throw std::runtime_error("an array of impossible size");
    if (length)
      count *= length;
    else
      empty = true;
  }
  return empty ? 0 : count;
}

struct Tensor {
  Shape shape;
  std::vector<float> data;
};

class Network {
 public:
  explicit Network(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error(path + " cannot be opened");
    bytes_.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    if (bytes_.compare(0, 8, "CMNET001") != 0)
      throw std::runtime_error(path + " is not a network that this version of cubemesh wrote");
    place_ = 8;
    name_ = text();
    const std::int64_t values = number(1 << 20);
    for (std::int64_t n = number(values); n > 0; --n) read_constant(values);
    for (std::int64_t n = number(values); n > 0; --n) read_operator(values);
    input_ = number(values - 1);
    input_shape_ = numbers();
    output_ = number(values - 1);
    if (place_ != bytes_.size()) throw std::runtime_error(path + " is damaged");
    bytes_ = std::string();
  }

  const std::string& name() const { return name_; }
  // Length of each axis of the input; -1 is any.
  const Shape& input_shape() const { return input_shape_; }

  Tensor operator()(const Tensor& input) const {
    check(input);
    std::map<std::int64_t, Held> held;
    for (const auto& [id, value] : constants_) held[id] = value;
    auto given = std::make_shared<Value>();
    given->shape = input.shape;
    given->floats = input.data;
    held[input_] = given;
    for (std::size_t n = 0; n < operators_.size(); ++n) {
      const Operator& one = operators_[n];
      std::vector<Held> inputs;
      for (std::int64_t id : one.inputs) {
        const auto found = held.find(id);
        if (id >= 0 && found == held.end()) throw std::runtime_error("a value is used before it is computed");
        inputs.push_back(id < 0 ? nullptr : found->second);
      }
      held[one.output] = compute(one, inputs);
      for (std::int64_t id : one.inputs)  // what nothing needs any more
        if (id >= 0 && last_use(id) == n && id != output_) held.erase(id);
    }
    const auto found = held.find(output_);
    if (found == held.end()) throw std::runtime_error("no operator computes the result");
    if (!found->second->integers.empty()) throw std::runtime_error("the result is not of floats");
    return {found->second->shape, found->second->floats};
  }

 private:
  struct Value {
    Shape shape;
    std::vector<float> floats;
    std::vector<std::int64_t> integers;
  };
  using Held = std::shared_ptr<const Value>;
  struct Operator {
    std::string kind;
    std::vector<std::int64_t> inputs;
    std::int64_t output = 0;
    std::map<std::string, Shape> integers;
    std::map<std::string, float> floats;

    std::int64_t at(const std::string& key, std::int64_t otherwise) const {
      const auto found = integers.find(key);
      return found == integers.end() || found->second.empty() ? otherwise : found->second[0];
    }
    Shape all(const std::string& key, std::size_t count, std::int64_t otherwise) const {
      const auto found = integers.find(key);
      if (found == integers.end()) return Shape(count, otherwise);
      if (found->second.size() != count) throw std::runtime_error(kind + ": " + key + " of another length");
      return found->second;
    }
    float real(const std::string& key, float otherwise) const {
      const auto found = floats.find(key);
      return found == floats.end() ? otherwise : found->second;
    }
  };

  std::string bytes_, name_;
  std::size_t place_ = 0;
  std::map<std::int64_t, Held> constants_;
  std::vector<Operator> operators_;
  std::map<std::int64_t, std::size_t> last_use_;
  std::int64_t input_ = 0, output_ = 0;
  Shape input_shape_;

  // ---- reading

  const char* take(std::uint64_t count) {
    if (count > bytes_.size() - place_) throw std::runtime_error("the file ends too early");
    const char* found = bytes_.data() + place_;
    place_ += count;
    return found;
  }
  std::int64_t integer() {
    std::int64_t found;
    std::memcpy(&found, take(8), 8);
    return found;
  }
  std::int64_t number(std::int64_t most) {
    const std::int64_t found = integer();
    if (found < 0 || found > most) throw std::runtime_error("the file is damaged");
    return found;
  }
  std::string text() {
    const std::int64_t count = number(4096);
    std::string found(take(count), count);
    for (char& one : found)  // it may get into a message
      if (one < 0x20 || one > 0x7e) one = '?';
    return found;
  }
  Shape numbers() {
    Shape found(number(64));
    for (std::int64_t& one : found) one = integer();
    return found;
  }
  void read_constant(std::int64_t values) {
    auto found = std::make_shared<Value>();
    const std::int64_t id = number(values - 1), is_integer = number(1);
    found->shape = numbers();
    const std::int64_t count = elements(found->shape);
    if (is_integer) {
      const char* from = take(8 * count);
      found->integers.resize(count);
      std::memcpy(found->integers.data(), from, 8 * count);
    } else {
      const char* from = take(4 * count);
      found->floats.resize(count);
      std::memcpy(found->floats.data(), from, 4 * count);
    }
    constants_[id] = found;
  }
  void read_operator(std::int64_t values) {
    Operator one;
    one.kind = text();
    for (std::int64_t n = number(64); n > 0; --n) {
      const std::int64_t id = integer();
      if (id < -1 || id >= values) throw std::runtime_error("the file is damaged");
      one.inputs.push_back(id);
      if (id >= 0 && !constants_.count(id)) last_use_[id] = operators_.size();
    }
    one.output = number(values - 1);
    for (std::int64_t n = number(64); n > 0; --n) {
      const std::string key = text();
      one.integers[key] = numbers();
    }
    for (std::int64_t n = number(64); n > 0; --n) {
      const std::string key = text();
      float value;
      std::memcpy(&value, take(4), 4);
      one.floats[key] = value;
    }
    operators_.push_back(one);
  }
  std::size_t last_use(std::int64_t id) const {
    const auto found = last_use_.find(id);
    return found == last_use_.end() ? std::numeric_limits<std::size_t>::max() : found->second;
  }
  void check(const Tensor& input) const {
    bool fits = input.shape.size() == input_shape_.size();
    for (std::size_t n = 0; fits && n < input_shape_.size(); ++n)
      fits = input.shape[n] > 0 && (input_shape_[n] < 0 || input.shape[n] == input_shape_[n]);
    if (!fits || elements(input.shape) != static_cast<std::int64_t>(input.data.size())) {
      std::string wanted;
      for (std::int64_t length : input_shape_)
        wanted += (wanted.empty() ? "" : " x ") + (length < 0 ? std::string("any") : std::to_string(length));
      throw std::runtime_error(name_ + " takes an input of " + wanted + " values");
    }
  }

  // ---- operators

  static void need(bool holds, const Operator& one, const char* what) {
    if (!holds) throw std::runtime_error(one.kind + ": " + what);
  }
  static const Value& floats(const Operator& one, const std::vector<Held>& given, std::size_t n) {
    need(n < given.size() && given[n] && given[n]->integers.empty(), one, "an input is missing");
    return *given[n];
  }
  static Shape integers(const Operator& one, const std::vector<Held>& given, std::size_t n) {
    need(n < given.size() && given[n] && given[n]->floats.empty(), one, "an input is missing");
    return given[n]->integers;
  }
  static std::shared_ptr<Value> made(Shape shape) {
    auto found = std::make_shared<Value>();
    found->floats.resize(elements(shape));
    found->shape = std::move(shape);
    return found;
  }
  static std::size_t axis_of(const Operator& one, std::int64_t axis, std::size_t rank) {
    if (axis < 0) axis += rank;
    need(axis >= 0 && axis < static_cast<std::int64_t>(rank), one, "an axis that is not there");
    return axis;
  }

  static Held compute(const Operator& one, const std::vector<Held>& given) {
    using Kernel = Held (*)(const Operator&, const std::vector<Held>&);
    static const std::map<std::string, Kernel> kernels = {
        {"Conv", conv},
        {"Gemm", gemm},
        {"MatMul", matmul},
        {"MaxPool", [](auto& o, auto& g) { return pool(o, g, true); }},
        {"AveragePool", [](auto& o, auto& g) { return pool(o, g, false); }},
        {"GlobalAveragePool", global_average},
        {"Concat", concat},
        {"Flatten", flatten},
        {"Reshape", reshape},
        {"Transpose", transpose},
        {"Unsqueeze", unsqueeze},
        {"Gather", gather},
        {"Softmax", softmax},
        {"LayerNormalization", layer_norm},
        {"BatchNormalization", batch_norm},
        {"LRN", response_norm},
        {"Shape", shape_of},
        {"Expand", expand},
        {"Identity", [](auto& o, auto& g) { return mapped(o, g, [](float x) { return x; }); }},
        {"Relu", [](auto& o, auto& g) { return mapped(o, g, [](float x) { return x > 0 ? x : 0; }); }},
        {"Sigmoid",
         [](auto& o, auto& g) { return mapped(o, g, [](float x) { return 1 / (1 + std::exp(-x)); }); }},
        {"Tanh", [](auto& o, auto& g) { return mapped(o, g, [](float x) { return std::tanh(x); }); }},
        {"Sqrt", [](auto& o, auto& g) { return mapped(o, g, [](float x) { return std::sqrt(x); }); }},
        {"Gelu",
         [](auto& o, auto& g) {
           if (o.at("tanh", 0))
             return mapped(o, g, [](float x) {
               return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
             });
           return mapped(o, g, [](float x) { return 0.5f * x * (1 + std::erf(x * 0.7071067812f)); });
         }},
        {"HardSwish",
         [](auto& o, auto& g) {
           return mapped(o, g, [](float x) { return x * std::clamp(x / 6 + 0.5f, 0.0f, 1.0f); });
         }},
        {"Add", [](auto& o, auto& g) { return paired(o, g, [](float a, float b) { return a + b; }); }},
        {"Sub", [](auto& o, auto& g) { return paired(o, g, [](float a, float b) { return a - b; }); }},
        {"Mul", [](auto& o, auto& g) { return paired(o, g, [](float a, float b) { return a * b; }); }},
        {"Div", [](auto& o, auto& g) { return paired(o, g, [](float a, float b) { return a / b; }); }},
        {"Pow",
         [](auto& o, auto& g) { return paired(o, g, [](float a, float b) { return std::pow(a, b); }); }},
    };
    const auto found = kernels.find(one.kind);
    if (found == kernels.end()) throw std::runtime_error("no operator " + one.kind);
    return found->second(one, given);
  }

  template <class F>
  static Held mapped(const Operator& one, const std::vector<Held>& given, F f) {
    const Value& x = floats(one, given, 0);
    auto y = made(x.shape);
    std::transform(x.floats.begin(), x.floats.end(), y->floats.begin(), f);
    return y;
  }

  // Of each position of `shape`, the place in an array of shape `own` that is broadcast to it.
  static std::vector<std::int64_t> steps(const Operator& one, const Shape& own, const Shape& shape) {
    std::vector<std::int64_t> found(shape.size(), 0);
    need(own.size() <= shape.size(), one, "shapes that do not fit");
    std::int64_t step = 1;
    for (std::size_t n = own.size(); n-- > 0;) {
      const std::size_t at = n + shape.size() - own.size();
      need(own[n] == 1 || own[n] == shape[at], one, "shapes that do not fit");
      found[at] = own[n] == 1 ? 0 : step;
      step *= own[n];
    }
    return found;
  }
  static Shape joined(const Operator& one, const Shape& a, const Shape& b) {
    Shape found(std::max(a.size(), b.size()), 1);
    for (const Shape* shape : {&a, &b})
      for (std::size_t n = 0; n < shape->size(); ++n) {
        std::int64_t& length = found[n + found.size() - shape->size()];
        need(length == 1 || (*shape)[n] == 1 || length == (*shape)[n], one, "shapes that do not fit");
        if (length == 1) length = (*shape)[n];
      }
    return found;
  }
  // Calls f(place in a, place in b) for each position of `shape` in C order.
  template <class F>
  static void walk(const Shape& shape, const std::vector<std::int64_t>& a,
                   const std::vector<std::int64_t>& b, F f) {
    Shape at(shape.size(), 0);
    std::int64_t i = 0, j = 0;
    for (std::int64_t left = elements(shape); left > 0; --left) {
      f(i, j);
      for (std::size_t n = shape.size(); n-- > 0;) {
        i += a[n];
        j += b[n];
        if (++at[n] < shape[n]) break;
        i -= a[n] * shape[n];
        j -= b[n] * shape[n];
        at[n] = 0;
      }
    }
  }
  template <class F>
  static Held paired(const Operator& one, const std::vector<Held>& given, F f) {
    const Value &a = floats(one, given, 0), &b = floats(one, given, 1);
    auto y = made(joined(one, a.shape, b.shape));
    float* out = y->floats.data();
    if (a.shape == b.shape) {
      for (std::size_t n = 0; n < a.floats.size(); ++n) out[n] = f(a.floats[n], b.floats[n]);
      return y;
    }
    walk(y->shape, steps(one, a.shape, y->shape), steps(one, b.shape, y->shape),
         [&](std::int64_t i, std::int64_t j) { *out++ = f(a.floats[i], b.floats[j]); });
    return y;
  }

  // c (m, n) += a (m, k) · b (k, n), four rows of c at a time.
  static void product(const float* a, const float* b, float* c, std::int64_t m, std::int64_t k,
                      std::int64_t n) {
    const std::int64_t width = 512;
    for (std::int64_t first = 0; first < n; first += width) {
      const std::int64_t count = std::min(width, n - first);
      std::int64_t i = 0;
      for (; i + 4 <= m; i += 4) {
        float *c0 = c + i * n + first, *c1 = c0 + n, *c2 = c1 + n, *c3 = c2 + n;
        for (std::int64_t p = 0; p < k; ++p) {
          const float *row = b + p * n + first, *at = a + i * k + p;
          const float a0 = at[0], a1 = at[k], a2 = at[2 * k], a3 = at[3 * k];
          for (std::int64_t j = 0; j < count; ++j) {
            c0[j] += a0 * row[j];
            c1[j] += a1 * row[j];
            c2[j] += a2 * row[j];
            c3[j] += a3 * row[j];
          }
        }
      }
      for (; i < m; ++i)
        for (std::int64_t p = 0; p < k; ++p) {
          const float x = a[i * k + p], *row = b + p * n + first;
          float* own = c + i * n + first;
          for (std::int64_t j = 0; j < count; ++j) own[j] += x * row[j];
        }
    }
  }

  struct Window {  // one axis of a convolution or pooling
    std::int64_t kernel, stride, before, after, dilation, in, out;
  };
  static std::vector<Window> windows(const Operator& one, const Shape& shape, const Shape& kernel) {
    const std::size_t count = kernel.size();
    need(shape.size() == 4 && count == 2, one, "only images are supported");
    const Shape strides = one.all("strides", count, 1), pads = one.all("pads", 2 * count, 0),
                dilations = one.all("dilations", count, 1);
    std::vector<Window> found;
    for (std::size_t n = 0; n < count; ++n) {
      Window w{kernel[n], strides[n], pads[n], pads[count + n], dilations[n], shape[2 + n], 0};
      for (std::int64_t length : {w.kernel, w.stride, w.before, w.after, w.dilation})
        need(length <= (1 << 20), one, "a window of impossible size");
      need(w.kernel > 0 && w.stride > 0 && w.before >= 0 && w.after >= 0 && w.dilation > 0, one,
           "a window of impossible size");
      const std::int64_t free = w.in + w.before + w.after - w.dilation * (w.kernel - 1) - 1;
      need(free >= 0, one, "a window larger than the image");
      w.out = free / w.stride + 1;
      if (one.at("ceil_mode", 0) && free % w.stride) {
        // a window that would begin behind the image is left out
        if (w.out * w.stride < w.in + w.before) ++w.out;
      }
      found.push_back(w);
    }
    return found;
  }

  static Held conv(const Operator& one, const std::vector<Held>& given) {
    const Value &x = floats(one, given, 0), &weight = floats(one, given, 1);
    need(weight.shape.size() == 4, one, "only images are supported");
    const std::int64_t group = one.at("group", 1), filters = weight.shape[0], inner = weight.shape[1];
    const auto w = windows(one, x.shape, {weight.shape[2], weight.shape[3]});
    need(group > 0 && x.shape[1] % group == 0 && inner == x.shape[1] / group && filters % group == 0, one,
         "channels that do not fit");
    const Window &down = w[0], &across = w[1];
    std::vector<float> columns(elements({inner, down.kernel, across.kernel, down.out, across.out}));
    const std::int64_t each = filters / group, cells = down.out * across.out,
                       depth = inner * down.kernel * across.kernel;
    auto y = made({x.shape[0], filters, down.out, across.out});
    if (given.size() > 2 && given[2]) {
      const Value& bias = floats(one, given, 2);
      need(static_cast<std::int64_t>(bias.floats.size()) == filters, one, "a bias of another length");
      for (std::int64_t n = 0; n < x.shape[0] * filters; ++n)
        std::fill_n(y->floats.begin() + n * cells, cells, bias.floats[n % filters]);
    }
    for (std::int64_t n = 0; n < x.shape[0]; ++n)
      for (std::int64_t g = 0; g < group; ++g) {
        const float* image = x.floats.data() + (n * group + g) * inner * down.in * across.in;
        float* column = columns.data();
        for (std::int64_t c = 0; c < inner; ++c)
          for (std::int64_t i = 0; i < down.kernel; ++i)
            for (std::int64_t j = 0; j < across.kernel; ++j)
              for (std::int64_t oy = 0; oy < down.out; ++oy) {
                const std::int64_t row = oy * down.stride - down.before + i * down.dilation;
                for (std::int64_t ox = 0; ox < across.out; ++ox) {
                  const std::int64_t at = ox * across.stride - across.before + j * across.dilation;
                  const bool inside = row >= 0 && row < down.in && at >= 0 && at < across.in;
                  *column++ = inside ? image[(c * down.in + row) * across.in + at] : 0.0f;
                }
              }
        product(weight.floats.data() + g * each * depth, columns.data(),
                y->floats.data() + (n * filters + g * each) * cells, each, depth, cells);
      }
    return y;
  }

  static Held pool(const Operator& one, const std::vector<Held>& given, bool largest) {
    const Value& x = floats(one, given, 0);
    const auto w = windows(one, x.shape, one.all("kernel_shape", 2, 1));
    const Window &down = w[0], &across = w[1];
    const bool padded = one.at("count_include_pad", 0);
    auto y = made({x.shape[0], x.shape[1], down.out, across.out});
    float* out = y->floats.data();
    for (std::int64_t plane = 0; plane < x.shape[0] * x.shape[1]; ++plane) {
      const float* image = x.floats.data() + plane * down.in * across.in;
      for (std::int64_t oy = 0; oy < down.out; ++oy)
        for (std::int64_t ox = 0; ox < across.out; ++ox) {
          float most = -std::numeric_limits<float>::infinity(), sum = 0;
          std::int64_t count = 0;
          for (std::int64_t i = 0; i < down.kernel; ++i)
            for (std::int64_t j = 0; j < across.kernel; ++j) {
              const std::int64_t row = oy * down.stride - down.before + i * down.dilation,
                                 at = ox * across.stride - across.before + j * across.dilation;
              const bool inside = row >= 0 && row < down.in && at >= 0 && at < across.in;
              if (inside) {
                const float value = image[row * across.in + at];
                most = value > most || value != value ? value : most;
                sum += value;
              }
              count += inside || (padded && row < down.in + down.after && at < across.in + across.after);
            }
          *out++ = largest ? most : sum / std::max<std::int64_t>(1, count);
        }
    }
    return y;
  }

  static Held global_average(const Operator& one, const std::vector<Held>& given) {
    const Value& x = floats(one, given, 0);
    need(x.shape.size() == 4, one, "only images are supported");
    const std::int64_t cells = x.shape[2] * x.shape[3];
    auto y = made({x.shape[0], x.shape[1], 1, 1});
    for (std::size_t n = 0; n < y->floats.size(); ++n) {
      const float* from = x.floats.data() + n * cells;
      y->floats[n] = static_cast<float>(std::accumulate(from, from + cells, 0.0) / cells);
    }
    return y;
  }

  static Held gemm(const Operator& one, const std::vector<Held>& given) {
    const Value &a = floats(one, given, 0), &b = floats(one, given, 1);
    need(a.shape.size() == 2 && b.shape.size() == 2 && !one.at("transA", 0), one, "its inputs are not two matrices");
    const bool turned = one.at("transB", 0);
    const std::int64_t m = a.shape[0], k = a.shape[1], n = b.shape[turned ? 0 : 1];
    need(b.shape[turned ? 1 : 0] == k, one, "shapes that do not fit");
    const float alpha = one.real("alpha", 1), beta = one.real("beta", 1);
    auto y = made({m, n});
    float* out = y->floats.data();
    if (turned) {
      for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < n; ++j) {
          const float *row = a.floats.data() + i * k, *other = b.floats.data() + j * k;
          float sums[8] = {};
          std::int64_t p = 0;
          for (; p + 8 <= k; p += 8)
            for (int q = 0; q < 8; ++q) sums[q] += row[p + q] * other[p + q];
          for (; p < k; ++p) sums[0] += row[p] * other[p];
          out[i * n + j] = ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
                           ((sums[4] + sums[5]) + (sums[6] + sums[7]));
        }
    } else {
      product(a.floats.data(), b.floats.data(), out, m, k, n);
    }
    const bool biased = given.size() > 2 && given[2];
    if (alpha != 1)
      for (float& value : y->floats) value *= alpha;
    if (biased) {
      const Value& c = floats(one, given, 2);
      walk(y->shape, steps(one, y->shape, y->shape), steps(one, c.shape, y->shape),
           [&](std::int64_t i, std::int64_t j) { out[i] += beta * c.floats[j]; });
    }
    return y;
  }

  static Held matmul(const Operator& one, const std::vector<Held>& given) {
    const Value &a = floats(one, given, 0), &b = floats(one, given, 1);
    need(a.shape.size() >= 2 && b.shape.size() >= 2, one, "its inputs are not two matrices");
    const std::int64_t m = a.shape[a.shape.size() - 2], k = a.shape.back(), n = b.shape.back();
    need(b.shape[b.shape.size() - 2] == k, one, "shapes that do not fit");
    const Shape before_a(a.shape.begin(), a.shape.end() - 2), before_b(b.shape.begin(), b.shape.end() - 2);
    Shape shape = joined(one, before_a, before_b);
    const auto steps_a = steps(one, before_a, shape), steps_b = steps(one, before_b, shape);
    Shape whole = shape;
    whole.insert(whole.end(), {m, n});
    auto y = made(whole);
    float* out = y->floats.data();
    walk(shape, steps_a, steps_b, [&](std::int64_t i, std::int64_t j) {
      product(a.floats.data() + i * m * k, b.floats.data() + j * k * n, out, m, k, n);
      out += m * n;
    });
    return y;
  }

  // The lengths of some axes of a value, as integers.
  static Held shape_of(const Operator& one, const std::vector<Held>& given) {
    need(given.size() == 1 && given[0], one, "an input is missing");
    const Shape& shape = given[0]->shape;
    const std::int64_t rank = shape.size();
    std::int64_t start = one.at("start", 0), end = one.at("end", rank);
    if (start < 0) start += rank;
    if (end < 0) end += rank;
    start = std::clamp<std::int64_t>(start, 0, rank);
    end = std::clamp<std::int64_t>(end, start, rank);
    auto y = std::make_shared<Value>();
    y->integers.assign(shape.begin() + start, shape.begin() + end);
    y->shape = {end - start};
    return y;
  }
  static Held expand(const Operator& one, const std::vector<Held>& given) {
    const Value& x = floats(one, given, 0);
    const Shape wanted = integers(one, given, 1);
    for (std::int64_t length : wanted) need(length > 0, one, "a length below 1");
    auto y = made(joined(one, x.shape, wanted));
    const std::vector<std::int64_t> none(y->shape.size(), 0);
    float* out = y->floats.data();
    walk(y->shape, steps(one, x.shape, y->shape), none,
         [&](std::int64_t i, std::int64_t) { *out++ = x.floats[i]; });
    return y;
  }

  static Held concat(const Operator& one, const std::vector<Held>& given) {
    if (!given.empty() && given[0] && !given[0]->integers.empty()) {  // of lengths
      auto y = std::make_shared<Value>();
      for (std::size_t n = 0; n < given.size(); ++n) {
        const Shape own = integers(one, given, n);
        y->integers.insert(y->integers.end(), own.begin(), own.end());
      }
      y->shape = {static_cast<std::int64_t>(y->integers.size())};
      return y;
    }
    const Value& first = floats(one, given, 0);
    const std::size_t axis = axis_of(one, one.at("axis", 0), first.shape.size());
    Shape shape = first.shape;
    shape[axis] = 0;
    for (std::size_t n = 0; n < given.size(); ++n) {
      const Value& x = floats(one, given, n);
      need(x.shape.size() == shape.size(), one, "shapes that do not fit");
      for (std::size_t d = 0; d < shape.size(); ++d)
        need(d == axis || x.shape[d] == shape[d], one, "shapes that do not fit");
      shape[axis] += x.shape[axis];
    }
    auto y = made(shape);
    const std::int64_t outer = elements(Shape(shape.begin(), shape.begin() + axis));
    float* out = y->floats.data();
    for (std::int64_t i = 0; i < outer; ++i)
      for (const Held& x : given) {
        const std::int64_t count = x->floats.size() / outer;
        out = std::copy_n(x->floats.data() + i * count, count, out);
      }
    return y;
  }

  static Held shaped(const Operator& one, const Value& x, Shape shape) {
    need(elements(shape) == static_cast<std::int64_t>(x.floats.size()), one, "another number of values");
    auto y = std::make_shared<Value>();
    y->shape = std::move(shape);
    y->floats = x.floats;
    return y;
  }
  static Held flatten(const Operator& one, const std::vector<Held>& given) {
    const Value& x = floats(one, given, 0);
    std::int64_t axis = one.at("axis", 1);
    if (axis < 0) axis += x.shape.size();
    need(axis >= 0 && axis <= static_cast<std::int64_t>(x.shape.size()), one, "an axis that is not there");
    return shaped(one, x, {elements(Shape(x.shape.begin(), x.shape.begin() + axis)),
                           elements(Shape(x.shape.begin() + axis, x.shape.end()))});
  }
  static Held reshape(const Operator& one, const std::vector<Held>& given) {
    const Value& x = floats(one, given, 0);
    Shape shape = integers(one, given, 1);
    Shape known;
    std::int64_t free = -1;
    for (std::size_t n = 0; n < shape.size(); ++n) {
      if (shape[n] == 0 && !one.at("allowzero", 0)) {
        need(n < x.shape.size(), one, "an axis that is not there");
        shape[n] = x.shape[n];
      }
      if (shape[n] == -1) {
        need(free < 0, one, "two free axes");
        free = n;
      } else {
        need(shape[n] >= 0, one, "a negative length");
        known.push_back(shape[n]);
      }
    }
    if (free >= 0) {
      const std::int64_t others = elements(known);
      need(others > 0 && x.floats.size() % others == 0, one, "another number of values");
      shape[free] = x.floats.size() / others;
    }
    return shaped(one, x, shape);
  }
  static Held unsqueeze(const Operator& one, const std::vector<Held>& given) {
    const Value& x = floats(one, given, 0);
    const Shape axes = integers(one, given, 1);
    Shape shape(x.shape.size() + axes.size(), 0);
    for (std::int64_t axis : axes) shape[axis_of(one, axis, shape.size())] = 1;
    std::size_t next = 0;
    for (std::int64_t& length : shape)
      if (!length) {
        need(next < x.shape.size(), one, "an axis given twice");
        length = x.shape[next++];
      }
    return shaped(one, x, shape);
  }
  static Held transpose(const Operator& one, const std::vector<Held>& given) {
    const Value& x = floats(one, given, 0);
    const std::size_t rank = x.shape.size();
    Shape perm(rank);
    for (std::size_t n = 0; n < rank; ++n) perm[n] = rank - 1 - n;
    if (one.integers.count("perm")) perm = one.all("perm", rank, 0);
    std::vector<std::int64_t> own(rank, 1), turned(rank), none(rank, 0);
    for (std::size_t n = rank; n-- > 1;) own[n - 1] = own[n] * x.shape[n];
    Shape shape(rank);
    std::vector<bool> seen(rank);
    for (std::size_t n = 0; n < rank; ++n) {
      const std::size_t from = axis_of(one, perm[n], rank);
      need(!seen[from], one, "an axis given twice");
      seen[from] = true;
      shape[n] = x.shape[from];
      turned[n] = own[from];
    }
    auto y = made(shape);
    float* out = y->floats.data();
    walk(shape, turned, none, [&](std::int64_t i, std::int64_t) { *out++ = x.floats[i]; });
    return y;
  }
  static Held gather(const Operator& one, const std::vector<Held>& given) {
    const Value& x = floats(one, given, 0);
    const Shape wanted = integers(one, given, 1);
    const std::size_t axis = axis_of(one, one.at("axis", 0), x.shape.size());
    Shape shape(x.shape.begin(), x.shape.begin() + axis);
    const std::int64_t outer = elements(shape), length = x.shape[axis];
    const std::int64_t inner = elements(Shape(x.shape.begin() + axis + 1, x.shape.end()));
    shape.insert(shape.end(), given[1]->shape.begin(), given[1]->shape.end());
    shape.insert(shape.end(), x.shape.begin() + axis + 1, x.shape.end());
    auto y = made(shape);
    float* out = y->floats.data();
    for (std::int64_t i = 0; i < outer; ++i)
      for (std::int64_t index : wanted) {
        if (index < 0) index += length;
        need(index >= 0 && index < length, one, "an index that is not there");
        out = std::copy_n(x.floats.data() + (i * length + index) * inner, inner, out);
      }
    return y;
  }

  static Held softmax(const Operator& one, const std::vector<Held>& given) {
    const Value& x = floats(one, given, 0);
    const std::size_t axis = axis_of(one, one.at("axis", -1), x.shape.size());
    need(axis + 1 == x.shape.size(), one, "only the last axis is supported");
    auto y = made(x.shape);
    const std::int64_t count = x.shape.back();
    for (std::size_t n = 0; n < x.floats.size(); n += count) {
      const float *from = x.floats.data() + n, most = *std::max_element(from, from + count);
      float *to = y->floats.data() + n, sum = 0;
      for (std::int64_t i = 0; i < count; ++i) sum += to[i] = std::exp(from[i] - most);
      for (std::int64_t i = 0; i < count; ++i) to[i] /= sum;
    }
    return y;
  }
  static Held layer_norm(const Operator& one, const std::vector<Held>& given) {
    const Value &x = floats(one, given, 0), &scale = floats(one, given, 1);
    const std::size_t axis = axis_of(one, one.at("axis", -1), x.shape.size());
    const std::int64_t count = elements(Shape(x.shape.begin() + axis, x.shape.end()));
    const Value* bias = given.size() > 2 && given[2] ? &floats(one, given, 2) : nullptr;
    need(static_cast<std::int64_t>(scale.floats.size()) == count &&
             (!bias || bias->floats.size() == scale.floats.size()),
         one, "weights of another length");
    auto y = made(x.shape);
    for (std::size_t n = 0; n < x.floats.size(); n += count) {
      const float* from = x.floats.data() + n;
      double mean = std::accumulate(from, from + count, 0.0) / count, square = 0;
      for (std::int64_t i = 0; i < count; ++i) square += (from[i] - mean) * (from[i] - mean);
      const double factor = 1 / std::sqrt(square / count + one.real("epsilon", 1e-5f));
      for (std::int64_t i = 0; i < count; ++i)
        y->floats[n + i] = static_cast<float>((from[i] - mean) * factor) * scale.floats[i] +
                           (bias ? bias->floats[i] : 0);
    }
    return y;
  }
  static Held response_norm(const Operator& one, const std::vector<Held>& given) {
    const Value& x = floats(one, given, 0);
    const std::int64_t size = one.at("size", 0);
    need(x.shape.size() >= 2 && size > 0, one, "no channels");
    const std::int64_t channels = x.shape[1];
    const std::int64_t cells = elements(Shape(x.shape.begin() + 2, x.shape.end()));
    const float alpha = one.real("alpha", 1e-4f), beta = one.real("beta", 0.75f),
                bias = one.real("bias", 1);
    auto y = made(x.shape);
    for (std::int64_t n = 0; n < x.shape[0] * channels; ++n) {
      const std::int64_t c = n % channels, first = std::max<std::int64_t>(0, c - (size - 1) / 2),
                         last = std::min(channels - 1, c + size / 2);
      for (std::int64_t i = 0; i < cells; ++i) {
        float sum = 0;
        for (std::int64_t other = first; other <= last; ++other) {
          const float value = x.floats[(n - c + other) * cells + i];
          sum += value * value;
        }
        y->floats[n * cells + i] = x.floats[n * cells + i] / std::pow(bias + alpha / size * sum, beta);
      }
    }
    return y;
  }
  static Held batch_norm(const Operator& one, const std::vector<Held>& given) {
    const Value& x = floats(one, given, 0);
    need(x.shape.size() >= 2, one, "no channels");
    const std::int64_t channels = x.shape[1];
    for (std::size_t n = 1; n < 5; ++n)
      need(static_cast<std::int64_t>(floats(one, given, n).floats.size()) == channels, one,
           "weights of another length");
    const std::int64_t cells = elements(Shape(x.shape.begin() + 2, x.shape.end()));
    auto y = made(x.shape);
    for (std::int64_t n = 0; n < x.shape[0] * channels; ++n) {
      const std::int64_t c = n % channels;
      const float factor =
          given[1]->floats[c] / std::sqrt(given[4]->floats[c] + one.real("epsilon", 1e-5f));
      const float shift = given[2]->floats[c] - given[3]->floats[c] * factor;
      for (std::int64_t i = n * cells; i < (n + 1) * cells; ++i)
        y->floats[i] = x.floats[i] * factor + shift;
    }
    return y;
  }
};

}  // namespace cubemesh
