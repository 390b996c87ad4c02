// Shared prefixes: a tree of blocks of page_tokens tokens, one root per salt. A node holds at most one unit of
// each group: the page of its block, or a snapshot of the recurrent state at the block's end (sparse). Nodes are found by
// hash and compared by tokens.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "state/pool.h"

namespace mr {

class PrefixTree {
 public:
  struct Node {
    struct Held {
      int32_t unit = -1;
      bool temporary = false;              // a rolling snapshot: dropped when its sequence advances, unless another resumed from it
      std::list<Node*>::iterator place{};  // in the group's eviction order
    };
    Node* parent = nullptr;             // null: a root, which has no tokens and holds nothing
    int depth = 0;                      // blocks from the root, this one included
    const std::string* salt = nullptr;  // of a root
    uint64_t hash = 0;
    std::vector<int32_t> tokens;
    std::vector<Held> held;  // per group
    int n_children = 0;
    int n_pins = 0;  // sequences whose last published block this is
  };

  // spine[g]: a node cannot exist without its unit of group g (pages that keep all tokens); other units may be evicted separately.
  PrefixTree(std::vector<UnitPool>& pools, std::vector<bool> spine);
  ~PrefixTree();

  Node* root(const std::string& salt);                             // created if absent; pin it, or the next prune removes it
  Node* child(const Node*, std::span<const int32_t> block) const;  // null: none
  Node* grow(Node* parent, std::span<const int32_t> block);        // child() must be null
  static Node* ancestor(Node*, int depth);

  void pin(Node* node) { node->n_pins++; }
  void unpin(Node*);  // prunes what is no longer needed

  void hold(Node*, int group, int32_t unit, bool temporary = false);
  void drop(Node*, int group);
  void touch(Node*, int group);  // marks it as most recently used. Touch a path from leaf to root, so that leaves age first

  // Frees the least recently used idle unit of a group; there must be one.
  void evict(int group);

  int64_t n_evictions() const { return n_evictions_; }
  size_t n_nodes() const { return nodes_.size(); }
  template <class F>
  void each(F f) const {  // every node but the roots
    for (auto& [hash, node] : nodes_) f(*node);
  }
  void clear() noexcept;  // the caller resets the pools
  void remove(Node*);     // a leaf, with all it holds
  void check_invariants() const;

 private:
  void prune(Node*);  // from here upwards: leaves that hold nothing and are not pinned

  std::vector<UnitPool>& pools_;
  std::vector<bool> spine_;
  std::unordered_map<std::string, std::unique_ptr<Node>> roots_;    // by salt
  std::unordered_multimap<uint64_t, std::unique_ptr<Node>> nodes_;  // by hash
  std::vector<std::list<Node*>> order_;                             // per group, least recently used first
  int64_t n_evictions_ = 0;
};

}  // namespace mr
