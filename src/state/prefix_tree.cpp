#include "state/prefix_tree.h"

#include <algorithm>

namespace mr {

static uint64_t mix(uint64_t h, uint64_t value) {  // splitmix64's finalizer over a running sum
  h += value + 0x9e3779b97f4a7c15;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9;
  h = (h ^ (h >> 27)) * 0x94d049bb133111eb;
  return h ^ (h >> 31);
}

static uint64_t hash_block(uint64_t h, std::span<const int32_t> block) {
  for (int32_t token : block) h = mix(h, uint32_t(token));
  return h;
}

PrefixTree::PrefixTree(std::vector<UnitPool>& pools, std::vector<bool> spine)
    : pools_(pools), spine_(std::move(spine)), order_(pools.size()) {}

PrefixTree::~PrefixTree() = default;

PrefixTree::Node* PrefixTree::root(const std::string& salt) {
  if (auto found = roots_.find(salt); found != roots_.end()) return found->second.get();
  auto root = std::make_unique<Node>();
  root->hash = std::hash<std::string>{}(salt);
  root->held.resize(pools_.size());
  auto& [kept_salt, node] = *roots_.emplace(salt, std::move(root)).first;
  node->salt = &kept_salt;
  return node.get();
}

PrefixTree::Node* PrefixTree::child(const Node* parent, std::span<const int32_t> block) const {
  auto [begin, end] = nodes_.equal_range(hash_block(parent->hash, block));
  for (auto it = begin; it != end; ++it)
    if (it->second->parent == parent && std::ranges::equal(it->second->tokens, block)) return it->second.get();
  return nullptr;
}

PrefixTree::Node* PrefixTree::grow(Node* parent, std::span<const int32_t> block) {
  auto node = std::make_unique<Node>();
  node->parent = parent;
  node->depth = parent->depth + 1;
  node->hash = hash_block(parent->hash, block);
  node->tokens.assign(block.begin(), block.end());
  node->held.resize(pools_.size());
  Node* grown = nodes_.emplace(node->hash, std::move(node))->second.get();
  parent->n_children++;
  return grown;
}

PrefixTree::Node* PrefixTree::ancestor(Node* node, int depth) {
  while (node->depth > depth) node = node->parent;
  return node;
}

void PrefixTree::unpin(Node* node) {
  node->n_pins--;
  prune(node);
}

void PrefixTree::hold(Node* node, int group, int32_t unit, bool temporary) {
  node->held[group] = {unit, temporary, order_[group].insert(order_[group].end(), node)};
  pools_[group].cache(unit);
}

void PrefixTree::drop(Node* node, int group) {
  Node::Held& held = node->held[group];
  pools_[group].uncache(held.unit);
  order_[group].erase(held.place);
  held = {};
  prune(node);
}

void PrefixTree::touch(Node* node, int group) {
  std::list<Node*>& order = order_[group];
  order.splice(order.end(), order, node->held[group].place);
}

// A node that cannot be evicted is in use, or has a child in use: it moves to the recent end, so that a scan visits it once.
void PrefixTree::evict(int group) {
  const UnitPool& pool = pools_[group];
  std::list<Node*>& order = order_[group];
  for (size_t n = order.size(); n > 0; n--) {
    Node* node = order.front();
    if (pool.idle(node->held[group].unit) && (!spine_[group] || node->n_children == 0)) {
      n_evictions_++;
      return spine_[group] ? remove(node) : drop(node, group);
    }
    order.splice(order.end(), order, order.begin());
  }
  fail("group {} has {} idle units but none that can be evicted", group, pool.n_idle());
}

void PrefixTree::remove(Node* node) {
  node->n_pins++;  // so that dropping the last unit does not prune it
  for (size_t g = 0; g < pools_.size(); g++)
    if (node->held[g].unit >= 0) drop(node, int(g));
  unpin(node);
}

void PrefixTree::clear() noexcept {
  for (std::list<Node*>& order : order_) order.clear();
  nodes_.clear();
  roots_.clear();
}

void PrefixTree::prune(Node* node) {
  auto empty = [](const Node::Held& held) { return held.unit < 0; };
  while (node && node->n_children == 0 && node->n_pins == 0 && std::ranges::all_of(node->held, empty)) {
    Node* parent = node->parent;
    if (parent) {
      parent->n_children--;
      auto [begin, end] = nodes_.equal_range(node->hash);
      nodes_.erase(std::find_if(begin, end, [&](auto& entry) { return entry.second.get() == node; }));
    } else {
      roots_.erase(roots_.find(*node->salt));
    }
    node = parent;
  }
}

void PrefixTree::check_invariants() const {
  std::unordered_map<const Node*, int> children;
  std::vector<size_t> n_held(pools_.size());
  for (auto& [hash, owner] : nodes_) {
    const Node* node = owner.get();
    children[node->parent]++;
    check(node->depth == node->parent->depth + 1, "a node of depth {} has a parent of depth {}", node->depth, node->parent->depth);
    check(child(node->parent, node->tokens) == node, "a node of depth {} is not found by its tokens", node->depth);
    bool used = node->n_children || node->n_pins;
    for (size_t g = 0; g < pools_.size(); g++) {
      const Node::Held& held = node->held[g];
      used |= held.unit >= 0;
      check(held.unit >= 0 || !spine_[g], "a node of depth {} lacks its page of group {}", node->depth, g);
      if (held.unit < 0) continue;
      n_held[g]++;
      check(held.unit > 0 && pools_[g].cached(held.unit) && *held.place == node, "unit {} of group {} is not the tree's", held.unit, g);
      bool parent_idle = node->depth > 1 && spine_[g] && pools_[g].idle(node->parent->held[g].unit);
      check(!parent_idle || pools_[g].idle(held.unit), "unit {} of group {} is in use below an idle one", held.unit, g);
    }
    check(used, "a node of depth {} serves nobody", node->depth);
  }
  for (auto& [hash, node] : nodes_)
    check(node->n_children == children[node.get()], "a node of depth {} counts {} children", node->depth, node->n_children);
  for (auto& [salt, root] : roots_)
    check(root->n_children == children[root.get()], "the root of salt '{}' counts {} children", salt, root->n_children);
  for (size_t g = 0; g < pools_.size(); g++)
    check(order_[g].size() == n_held[g], "the eviction order of group {} has {} nodes, the tree {}", g, order_[g].size(), n_held[g]);
}

}  // namespace mr
