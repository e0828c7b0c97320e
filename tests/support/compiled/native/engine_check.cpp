// Prints the vectors of a small encoder, a line for each instruction set and precision of this
// processor; fails if a text alone has another vector than in a batch.
#include <cstdio>
#include <random>
#include <vector>

#include "engine/engine.h"
#include "isa_list.h"

using namespace mirror_rt::engine;

namespace {

#ifndef MIRROR_RT_CHECK_INNER
#define MIRROR_RT_CHECK_INNER 100  // engine_check.txt has the vectors of this model
#endif
constexpr std::int64_t kHidden = 60, kHeads = 3, kWords = 50, kPositions = 70;
constexpr std::int64_t kInner = MIRROR_RT_CHECK_INNER;

/// Arrays of random numbers that stay where they are; the same ones on every processor.
class Arrays {
 public:
  const float* make(std::int64_t size, float scale, float mean = 0) {
    std::vector<float> array;
    for (std::int64_t i = 0; i < size; ++i) {
      array.push_back(mean + scale * (static_cast<float>(generator_() >> 8) / (1 << 23) - 1));
    }
    arrays_.push_back(std::move(array));
    return arrays_.back().data();
  }
  Weight weight(std::int64_t depth, std::int64_t columns) {
    return {make(depth * columns, 0.2f), make(columns, 0.1f), depth, columns};
  }
  Norm norm() { return {make(kHidden, 0.3f, 1), make(kHidden, 0.1f), true}; }

 private:
  std::mt19937 generator_{1};
  std::vector<std::vector<float>> arrays_;
};

std::vector<float> encode(const Encoder& encoder, const std::vector<std::int32_t>& ids,
                          const std::vector<std::int64_t>& offsets, int threads) {
  const auto texts = static_cast<std::int64_t>(offsets.size()) - 1;
  std::vector<float> out(static_cast<std::size_t>(texts * kHidden));
  Texts parts{};
  parts.ids = ids.data(), parts.offsets = offsets.data(), parts.count = texts;
  encoder.run(parts, Pooling::mean, threads, 0, out.data());
  return out;
}

}  // namespace

int main() {
  Arrays arrays;
  EmbeddingWeights embeddings{};
  embeddings.words = arrays.make(kWords * kHidden, 1);
  embeddings.positions = arrays.make(kPositions * kHidden, 1);
  embeddings.norm = arrays.norm();
  const LayerWeights layer{arrays.weight(kHidden, 3 * kHidden),
                           arrays.weight(kHidden, kHidden),
                           arrays.norm(),
                           arrays.weight(kHidden, kInner),
                           arrays.weight(kInner, kHidden),
                           arrays.norm(),
                           kPositions,
                           nullptr};
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> offsets{0};
  for (const int length : {1, 2, 3, 4, 7, 8, 9, 16, 33, 64, 65, 70}) {
    for (int i = 0; i < length; ++i) ids.push_back((7 * i + length) % kWords);
    offsets.push_back(static_cast<std::int64_t>(ids.size()));
  }
  const char* const names[] = {"fp32", "bf16", "int8"};
  for (const Isa* isa : mirror_rt::supported(kIsas)) {
    for (const auto precision : {Precision::float32, Precision::bfloat16, Precision::int8}) {
      Config config{};
      config.precision = precision, config.activation = Activation::gelu;
      config.hidden = config.embedded = kHidden, config.inner = kInner;
      config.heads = config.key_heads = kHeads, config.size = kHidden / kHeads;
      config.vocabulary = kWords, config.positions = kPositions, config.skipped_id = -1;
      config.scale = 0.2f, config.word_scale = 1, config.epsilon = 1e-6f, config.centred = true;
      Encoder encoder(config, *isa, embeddings);
      encoder.add_layer(layer);
      encoder.repeat_layer(0);
      const auto together = encode(encoder, ids, offsets, 2);
      std::vector<float> alone;
      for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
        const auto vector = encode(encoder, ids, {offsets[i], offsets[i + 1]}, 1);
        alone.insert(alone.end(), vector.begin(), vector.end());
      }
      if (alone != together) return 1;
      std::printf("%s %s", isa->name, names[static_cast<int>(precision)]);
      for (const float x : together) std::printf(" %.9g", static_cast<double>(x));
      std::puts("");
    }
  }
}
