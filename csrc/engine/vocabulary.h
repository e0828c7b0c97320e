// The head of a masked language model, whose logits are pooled over the tokens of each text.
#pragma once

#include <cstdint>

#include "engine/engine.h"

namespace mirror_rt::engine {

/// How the logits of a text's tokens become one weight of each word.
struct Weighing {
  bool sum;    // of the weights of all tokens; else their largest
  bool twice;  // whether a weight is log(1 + log(1 + x)), and not log(1 + x), of a logit x > 0
};

/// A dense layer, an activation, a normalisation, and a matrix that gives a logit for each word.
class VocabularyHead {
 public:
  /// The norm is that of `decoder.depth` numbers. Throws std::invalid_argument for other sizes.
  VocabularyHead(const Isa& isa, Precision precision, Activation activation, float epsilon,
                 const Weight& dense, const Norm& norm, const Weight& decoder);

  /// Writes the weight of each word in each text, [count, words]; text i has the vectors of tokens
  /// [offsets[i], offsets[i + 1]) of `tokens`, [.., hidden]. The logits of a block of tokens and
  /// words are gone once they are pooled. Safe to call concurrently.
  void run(const float* tokens, const std::int64_t* offsets, std::int64_t count, Weighing weighing,
           int threads, int spins, float* out) const;

  std::int64_t hidden() const { return hidden_; }
  std::int64_t words() const { return words_; }

 private:
  struct Run;

  void encode(Phases::Member& member, const Run& run) const;
  void pool_panel(const Run& run, std::int64_t panel, float* block) const;

  const Isa& isa_;
  Precision precision_;
  Activation activation_;
  float epsilon_;
  std::int64_t hidden_, embedded_, words_;
  Arena weights_;
  PackedMatrix dense_, decoder_;
  Buffer<float> norm_weight_, norm_bias_;
};

}  // namespace mirror_rt::engine
