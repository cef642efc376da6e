// SPDX-License-Identifier: Apache-2.0
#include "tidegate/comm/exchange.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace tidegate::exchange_test {
namespace {

// Counts how many of it are alive: one lives in the frame of each exchange below.
class Guest {
 public:
  explicit Guest(int& alive) : alive_(alive) { ++alive_; }
  ~Guest() { --alive_; }
  Guest(const Guest&) = delete;
  Guest& operator=(const Guest&) = delete;

 private:
  int& alive_;
};

Exchange ask(int first, int last, std::vector<int>& resumed, int& alive) {
  const Guest guest(alive);
  for (int bucket = first; bucket <= last; ++bucket) {
    co_yield Foreign{bucket};
    resumed.push_back(bucket);
  }
}

Exchange ask_and_throw(int& alive) {
  const Guest guest(alive);
  co_yield Foreign{1};
  throw std::runtime_error("message damaged");
}

Exchange wrap(Exchange inner) {
  co_yield Foreign{100};
  while (inner.advance()) co_yield inner.request();
  co_yield Foreign{200};
}

Exchange wrap_thrower(int& alive) {
  Exchange inner = ask_and_throw(alive);
  while (inner.advance()) co_yield inner.request();
}

int asked(const Exchange& exchange) { return std::get<Foreign>(exchange.request()).bucket; }

std::vector<int> drain(Exchange& exchange) {
  std::vector<int> requests;
  while (exchange.advance()) requests.push_back(asked(exchange));
  return requests;
}

class ExchangeTest : public testing::Test {
 protected:
  std::vector<int> resumed_;
  int alive_ = 0;
};

TEST_F(ExchangeTest, RunsNothingBeforeItIsAdvanced) {
  const Exchange exchange = ask(1, 2, resumed_, alive_);
  EXPECT_TRUE(exchange);
  EXPECT_EQ(alive_, 0);
}

TEST_F(ExchangeTest, YieldsItsRequestsOneByOneAndFinishes) {
  Exchange exchange = ask(1, 3, resumed_, alive_);
  ASSERT_TRUE(exchange.advance());
  EXPECT_EQ(asked(exchange), 1);
  EXPECT_EQ(resumed_, std::vector<int>{});
  ASSERT_TRUE(exchange.advance());
  EXPECT_EQ(asked(exchange), 2);
  EXPECT_EQ(resumed_, std::vector{1});
  ASSERT_TRUE(exchange.advance());
  EXPECT_FALSE(exchange.advance());
  EXPECT_EQ(resumed_, (std::vector{1, 2, 3}));
  EXPECT_EQ(alive_, 0);
}

TEST_F(ExchangeTest, WithoutRequestsFinishesAtOnce) {
  Exchange exchange = ask(1, 0, resumed_, alive_);
  EXPECT_FALSE(exchange.advance());
}

TEST_F(ExchangeTest, RethrowsWhatItsBodyThrows) {
  Exchange exchange = ask_and_throw(alive_);
  ASSERT_TRUE(exchange.advance());
  EXPECT_THROW(exchange.advance(), std::runtime_error);
  EXPECT_EQ(alive_, 0);
}

TEST_F(ExchangeTest, DroppedBeforeItsStartFreesItsFrame) {
  { const Exchange exchange = ask(1, 3, resumed_, alive_); }
  EXPECT_EQ(alive_, 0);
}

TEST_F(ExchangeTest, DroppedHalfWayFreesItsFrame) {
  {
    Exchange exchange = ask(1, 3, resumed_, alive_);
    ASSERT_TRUE(exchange.advance());
    EXPECT_EQ(alive_, 1);
  }
  EXPECT_EQ(alive_, 0);
  EXPECT_EQ(resumed_, std::vector<int>{});
}

TEST_F(ExchangeTest, DroppedHalfWayFreesTheExchangeInsideIt) {
  {
    Exchange exchange = wrap(ask(1, 3, resumed_, alive_));
    ASSERT_TRUE(exchange.advance());
    ASSERT_TRUE(exchange.advance());
    EXPECT_EQ(alive_, 1);
  }
  EXPECT_EQ(alive_, 0);
}

TEST_F(ExchangeTest, PassesOnTheRequestsOfAnExchangeInsideIt) {
  Exchange exchange = wrap(wrap(ask(1, 2, resumed_, alive_)));
  EXPECT_EQ(drain(exchange), (std::vector{100, 100, 1, 2, 200, 200}));
  EXPECT_EQ(resumed_, (std::vector{1, 2}));
}

TEST_F(ExchangeTest, PassesOnWhatAnExchangeInsideItThrows) {
  Exchange exchange = wrap_thrower(alive_);
  ASSERT_TRUE(exchange.advance());
  EXPECT_THROW(exchange.advance(), std::runtime_error);
  EXPECT_EQ(alive_, 0);
}

TEST_F(ExchangeTest, GoesOnWhereItWasAfterAMove) {
  Exchange first = ask(1, 3, resumed_, alive_);
  ASSERT_TRUE(first.advance());
  Exchange second = std::move(first);
  EXPECT_EQ(asked(second), 1);
  EXPECT_EQ(drain(second), (std::vector{2, 3}));
}

TEST_F(ExchangeTest, OverwrittenHalfWayFreesItsFrame) {
  Exchange exchange = ask(1, 3, resumed_, alive_);
  ASSERT_TRUE(exchange.advance());
  exchange = Exchange();
  EXPECT_FALSE(exchange);
  EXPECT_EQ(alive_, 0);
}

}  // namespace
}  // namespace tidegate::exchange_test
