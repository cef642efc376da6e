// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/method.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/compressors/averaging.h"
#include "tests/expect_error.h"

namespace tidegate::method_test {
namespace {

TEST(Methods, AreFoundByName) {
  for (const Method& method : methods()) EXPECT_EQ(&find_method(method.name), &method);
}

TEST(Methods, AnUnknownNameIsAnErrorThatListsTheKnownOnes) {
  for (const char* name : {"topkk", "", "TopK", "top"}) {
    for (const Method& method : methods()) {
      EXPECT_TRUE(
          fails(Fault::config, [&] { find_method(name); }, {concat('"', name, '"'), method.name}));
    }
  }
}

TEST(Routes, AreFoundByName) {
  for (const Route route : {Route::all_gather, Route::engine}) {
    EXPECT_EQ(parse_route(name(route)), route);
  }
}

TEST(Routes, AnUnknownNameIsAnErrorThatListsTheKnownOnes) {
  EXPECT_TRUE(fails(Fault::config, [] { parse_route("carrier-pigeon"); },
                    {"carrier-pigeon", "auto", "allgather", "engine"}));
}

TEST(Choices, TakeTheDefaultRouteOfTheMethod) {
  EXPECT_EQ(make_choice("topk", 0.01), (Choice{.method = &find_method("topk"),
                                               .ratio = 0.01,
                                               .route = Route::all_gather,
                                               .any_route = true,
                                               .bits = 16}));
  EXPECT_EQ(make_choice("artopk-var", 1.0),
            (Choice{.method = &find_method("artopk-var"), .any_route = true}));
  EXPECT_EQ(make_choice("dense"), (Choice{.method = &find_method("dense"), .any_route = true}));
}

Route cheapest(const char* method, int ranks, std::string_view route = "auto") {
  const Shape shape{.elements = 1'000'000, .ranks = ranks};
  return cheapest_route(make_choice(method, 0.01, route), shape).route;
}

TEST(Choices, OfAnyRouteTakeTheOneWithTheFewestBytes) {
  EXPECT_EQ(cheapest("int8", 2), Route::all_gather);
  EXPECT_EQ(cheapest("int8", 3), Route::owner);
  EXPECT_EQ(cheapest("int4", 16), Route::owner);
  EXPECT_EQ(cheapest("dense", 16), Route::engine);
}

TEST(Choices, OfAnyRouteNeverTakeOneThatDeliversLess) {
  for (const int ranks : {1, 2, 16}) {
    EXPECT_EQ(cheapest("topk", ranks), Route::all_gather);
    EXPECT_EQ(cheapest("sign", ranks), Route::all_gather);
  }
}

TEST(Choices, KeepARouteThatTheUserHasChosen) {
  EXPECT_EQ(cheapest("int8", 16, "allgather"), Route::all_gather);
  EXPECT_EQ(cheapest("topk", 16, "owner"), Route::owner);
}

TEST(Choices, GoByHostIfAskedTo) {
  EXPECT_TRUE(make_choice("dense", 1, "hosts").by_host);
  EXPECT_EQ(make_choice("dense", 1, "hosts+ring").route, Route::ring);
  EXPECT_EQ(make_choice("topk", 0.1, "hosts").route, Route::all_gather);
  EXPECT_EQ(describe(make_choice("dense", 1, "hosts+tree")), "dense by hosts+tree");
  EXPECT_FALSE(make_choice("dense", 1, "ring").by_host);
  EXPECT_TRUE(fails(Fault::config, [] { make_choice("dense", 1, "hosts+pigeon"); }, {"pigeon"}));
}

TEST(Choices, TakeARouteThatTheMethodHas) {
  for (const Method& method : methods()) {
    for (const Route route : method.routes) {
      EXPECT_EQ(make_choice(method.name, level_of(method, 0.5), name(route)).route, route);
    }
  }
}

TEST(Choices, ARouteThatTheMethodDoesNotHaveIsAnErrorThatListsItsRoutes) {
  EXPECT_TRUE(fails(Fault::config, [] { make_choice("topk", 0.01, "engine"); },
                    {"topk", "engine", "auto", "allgather"}));
  EXPECT_TRUE(fails(Fault::config, [] { make_choice("dense", 1.0, "allgather"); }));
  EXPECT_TRUE(fails(Fault::config, [] { make_choice("dense", 1.0, ""); }));
}

TEST(Choices, ARatioOutsideItsBoundsIsAnErrorThatShowsIt) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const Method& method : methods()) {
    if (method.level != Level::ratio) continue;
    for (const double ratio : {0.0, -0.01, 2.0, std::nextafter(1.0, 2.0), kNan, kInf, -kInf}) {
      EXPECT_TRUE(fails(Fault::config, [&] { make_choice(method.name, ratio); }, {method.name}));
    }
    EXPECT_EQ(make_choice(method.name, 1.0).ratio, 1.0);
    EXPECT_EQ(make_choice(method.name, 1e-12).ratio, 1e-12);
  }
  EXPECT_TRUE(fails(Fault::config, [] { make_choice("topk", 2.0); }, {"ratio 2 "}));
}

TEST(Choices, OfAMethodWithoutRatioAreEqualWhateverTheRatio) {
  EXPECT_EQ(make_choice("dense", 0.3), make_choice("dense"));
}

TEST(Choices, DescribeThemselves) {
  EXPECT_EQ(describe(make_choice("topk", 0.01)), "topk 0.01 in 16 bits by allgather");
  EXPECT_EQ(describe(make_choice("artopk-star", 0.5)), "artopk-star 0.5 by engine");
  EXPECT_EQ(describe(make_choice("dense")), "dense by engine");
}

TEST(KeptElements, IsAShareRoundedDown) {
  EXPECT_EQ(kept_elements(1000, 0.01), 10u);
  EXPECT_EQ(kept_elements(1099, 0.01), 10u);
  EXPECT_EQ(kept_elements(1100, 0.01), 11u);
  EXPECT_EQ(kept_elements(7, 0.5), 3u);
  EXPECT_EQ(kept_elements(7, 1.0), 7u);
}

TEST(KeptElements, IsAtLeastOneOfABucketThatIsNotEmpty) {
  EXPECT_EQ(kept_elements(1, 0.01), 1u);
  EXPECT_EQ(kept_elements(99, 0.01), 1u);
  EXPECT_EQ(kept_elements(1000000, 1e-12), 1u);
  EXPECT_EQ(kept_elements(0, 0.5), 0u);
}

TEST(KeptElements, IsNotFooledByBinaryFractions) {
  EXPECT_EQ(kept_elements(100, 0.29), 29u);  // 0.29 * 100 is 28.999999999999996
  for (std::size_t percent = 1; percent <= 100; ++percent) {
    EXPECT_EQ(kept_elements(100, static_cast<double>(percent) / 100), percent);
    EXPECT_EQ(kept_elements(1000000, static_cast<double>(percent) / 100), 10000 * percent);
  }
}

}  // namespace
}  // namespace tidegate::method_test
