#include "state/prefix_tree.h"

#include <gtest/gtest.h>

namespace mr {
namespace {

using Node = PrefixTree::Node;
using Block = std::vector<int32_t>;

// Group 0: pages that keep all; group 1: snapshots.
struct PrefixTreeTest : testing::Test {
  std::vector<UnitPool> pools{UnitPool(10), UnitPool(10)};
  PrefixTree tree{pools, {true, false}};

  // A node that only the tree holds.
  Node* add(Node* parent, const Block& block, bool snapshot = false) {
    Node* node = tree.grow(parent, block);
    for (int g = 0; g <= int(snapshot); g++) {
      int32_t unit = pools[g].take();
      tree.hold(node, g, unit);
      pools[g].release(unit);
    }
    return node;
  }
};

TEST_F(PrefixTreeTest, FindsBlocksBelowTheirParentAlone) {
  Node* root = tree.root("");
  Node* a = add(root, {1, 2});
  Node* b = add(a, {1, 2});
  EXPECT_EQ(tree.child(root, Block{1, 2}), a);
  EXPECT_EQ(tree.child(a, Block{1, 2}), b);
  EXPECT_EQ(tree.child(b, Block{1, 2}), nullptr);
  EXPECT_EQ(tree.child(root, Block{2, 1}), nullptr);
  EXPECT_EQ(tree.child(tree.root("tenant"), Block{1, 2}), nullptr);
  EXPECT_EQ(PrefixTree::ancestor(b, 1), a);
  EXPECT_EQ(PrefixTree::ancestor(b, 0), root);
}

TEST_F(PrefixTreeTest, ComparesTokensWhenHashesAreEqual) {
  Node* root = tree.root("");
  Node* a = add(root, {1, 2});
  a->tokens = {3, 4};  // a block whose hash is that of {1, 2}
  EXPECT_EQ(tree.child(root, Block{1, 2}), nullptr);
  Node* b = add(root, {1, 2});
  EXPECT_EQ(tree.child(root, Block{1, 2}), b);
  pools[0].retain(b->held[0].unit);
  tree.evict(0);  // removes the right one of the two
  EXPECT_EQ(tree.child(root, Block{1, 2}), b);
  EXPECT_EQ(tree.n_nodes(), 1u);
}

// Salts keep tenants apart even if their hashes do not.
TEST_F(PrefixTreeTest, ComparesParentsWhenHashesAreEqual) {
  Node *root = tree.root(""), *other = tree.root("tenant");
  other->hash = root->hash;
  Node* a = add(root, {1, 2});
  EXPECT_EQ(tree.child(other, Block{1, 2}), nullptr);
  Node* b = add(other, {1, 2});
  EXPECT_EQ(tree.child(root, Block{1, 2}), a);
  EXPECT_EQ(tree.child(other, Block{1, 2}), b);
}

TEST_F(PrefixTreeTest, EvictsTheLeastRecentlyUsedLeafFirst) {
  Node* root = tree.root("");
  Node* a = add(root, {1});
  Node* b = add(a, {2});
  Node* c = add(root, {3});
  for (Node* node : {b, a}) tree.touch(node, 0);
  tree.evict(0);
  EXPECT_EQ(tree.child(root, Block{3}), nullptr) << "c was used least recently";
  (void)c;
  tree.evict(0);
  EXPECT_EQ(tree.child(root, Block{1}), a);
  EXPECT_EQ(tree.child(a, Block{2}), nullptr) << "a leaf goes before its parent";
  tree.evict(0);
  EXPECT_EQ(tree.n_nodes(), 0u);
  EXPECT_EQ(pools[0].n_free(), pools[0].n_units());
  EXPECT_EQ(tree.n_evictions(), 3);
}

TEST_F(PrefixTreeTest, EvictsNothingThatIsInUse) {
  Node* root = tree.root("");
  Node* a = add(root, {1});
  Node* b = add(root, {2});
  pools[0].retain(a->held[0].unit);
  tree.evict(0);
  EXPECT_EQ(tree.child(root, Block{1}), a);
  EXPECT_EQ(tree.child(root, Block{2}), nullptr);
  (void)b;
  EXPECT_THROW(tree.evict(0), Error);
}

TEST_F(PrefixTreeTest, EvictsASnapshotAlone) {
  Node* root = tree.root("");
  Node* a = add(root, {1}, true);
  Node* b = add(a, {2}, true);
  tree.evict(1);
  EXPECT_EQ(a->held[1].unit, -1);
  EXPECT_GE(a->held[0].unit, 1);
  EXPECT_GE(b->held[1].unit, 1);
  tree.evict(0);  // the leaf goes with its snapshot
  EXPECT_EQ(pools[1].n_free(), pools[1].n_units());
  tree.check_invariants();
}

TEST_F(PrefixTreeTest, PrunesWhatServesNobody) {
  Node* root = tree.root("tenant");
  Node* a = tree.grow(root, Block{1});
  Node* b = tree.grow(a, Block{2});
  tree.pin(b);
  int32_t unit = pools[1].take();
  tree.hold(b, 1, unit);
  pools[1].release(unit);
  tree.evict(1);
  EXPECT_EQ(tree.n_nodes(), 2u) << "a pinned node stays";
  tree.unpin(b);
  EXPECT_EQ(tree.n_nodes(), 0u) << "and takes its empty ancestors with it";
}

}  // namespace
}  // namespace mr
