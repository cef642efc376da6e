// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/compressors/averaging.h"

namespace tidegate::sparsifier_test {
namespace {

template <typename T>
std::vector<T> read_all(std::istream& line) {
  std::vector<T> items;
  for (T item; line >> item;) items.push_back(item);
  return items;
}

std::vector<std::size_t> not_zero(const Vector& values) {
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != 0) indices.push_back(i);
  }
  return indices;
}

// Vectors written by tools/golden_sparsifiers.py.
TEST(Sparsifiers, SelectWhatTheirDefinitionsSay) {
  std::ifstream file(TIDEGATE_TEST_DATA "/sparsifiers_golden.txt");
  ASSERT_TRUE(file) << "cannot read " TIDEGATE_TEST_DATA "/sparsifiers_golden.txt";
  Vector values;
  Layers layers;
  std::size_t cases = 0;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string word;
    if (!(line >> word) || word == "#") continue;
    if (word == "values") {
      values = read_all<float>(line);
      for (float& value : values) value /= 64;
    } else if (word == "layers") {
      layers.clear();
      for (const std::size_t elements : read_all<std::size_t>(line)) {
        layers.push_back({std::to_string(layers.size()), elements});
      }
    } else {
      double ratio = 0;
      line >> ratio;
      SCOPED_TRACE(testing::Message() << word << " " << ratio << ", case " << cases);
      Choice choice = make_choice(word, ratio, "auto", 32);
      choice.keep = kernels::Keep::exactly;
      Averaging averaging(choice, 1, layers);
      averaging.bucket = 3;
      Vectors results{values};
      averaging.step(results);
      EXPECT_EQ(not_zero(results[0]), read_all<std::size_t>(line));
      EXPECT_EQ(results[0], sent_of(Vector(values.size()), values, averaging.residuals[0]));
      ++cases;
    }
  }
  EXPECT_EQ(cases, 8 * 4 * 8u);
}

// C at a strong ratio out of a weaker selection is C at that ratio at once.
TEST(Sparsifiers, AStrongerLevelOutOfAWeakerOneIsThatLevel) {
  const Layers layers{{"a", 20'000}, {"b", 3}, {"c", 0}, {"d", 9'000}, {"e", 1}};
  for (const char* method : {"topk", "lwtopk", "randomk"}) {
    SCOPED_TRACE(method);
    Choice choice = make_choice(method, 0.001);
    if (!choice.method->bits.empty()) choice.bits = 32;
    choice.keep = kernels::Keep::exactly;
    Averaging direct(choice, 2, layers);
    choice.weaker = 0.1;
    Averaging by_way_of_weaker(choice, 2, layers);
    Choice weak = choice;
    weak.ratio = 0.1;
    weak.weaker = 0;
    for (std::uint64_t step = 0; step < 3; ++step) {
      Vectors results = make_gradients(2, elements_of(layers), step);
      Vectors others = results;
      Vectors weakly = results;
      Averaging weaker(weak, 2, layers);
      for (std::uint64_t skipped = 0; skipped < step; ++skipped) {
        Vectors zeros(2, Vector(elements_of(layers)));
        weaker.step(zeros);  // the choice depends on the step
      }
      weaker.residuals = direct.residuals;
      weaker.step(weakly);
      direct.step(results);
      by_way_of_weaker.step(others);
      ASSERT_EQ(results, others);
      ASSERT_EQ(direct.residuals, by_way_of_weaker.residuals);
      const double energy = weaker.report(1).sent_energy;
      EXPECT_NEAR(by_way_of_weaker.report(1).weaker_energy, energy, 1e-5 * energy);
    }
  }
}

}  // namespace
}  // namespace tidegate::sparsifier_test
