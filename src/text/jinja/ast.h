// A parsed template. One node type for expressions and one for statements: `kind` says which members count.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace mr::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;
using NamedExpression = std::pair<std::string, ExpressionPtr>;

struct Expression {
  enum class Kind : unsigned char {
    constant,     // value
    name,         // text
    list,         // children
    tuple,        // children
    dict,         // children: key, value, key, value, …
    unary,        // text: "-", "+", "not"; children[0]
    binary,       // text: + - * / // % ** ~ and or; children[0], [1]
    compare,      // children[0], then operators[i] with children[i + 1], chained as in Python
    conditional,  // children: condition, then, else (null: undefined)
    attribute,    // children[0] . text
    item,         // children[0] [ children[1] ]
    slice,        // children[0] [ children[1] : children[2] : children[3] ], each of the three may be null
    call,         // children[0] ( children[1…], named )
    filter,       // children[0] | text ( children[1…], named ); children[0] is null in a filter block
    test,         // children[0] is text ( children[1…], named )
  } kind;
  int line = 0;
  int depth = 1;  // of the tree below
  std::string text;
  Value value;
  std::vector<ExpressionPtr> children;
  std::vector<NamedExpression> named;
  std::vector<std::string> operators;
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

struct Statement {
  enum class Kind : unsigned char {
    data,          // text
    output,        // expression
    loop,          // targets in expression, if condition: body, else other
    conditional,   // branches in order, other
    set,           // targets = expression; or text . attribute = expression
    set_block,     // targets[0] = body, through the filters of `expression` if there are any
    macro,         // text ( targets, with defaults ): body
    call_block,    // call ( targets, with defaults ) expression: body
    with_block,    // named values, then body
    filter_block,  // expression (a filter without input) over body
    group,         // body
    leave,         // break
    next,          // continue
  } kind;
  int line = 0;
  std::string text, attribute;
  std::vector<std::string> targets;
  bool unpack = false;  // several targets share one value
  ExpressionPtr expression, condition;
  std::vector<ExpressionPtr> defaults;  // for the last targets of a macro
  std::vector<NamedExpression> named;
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  Body body, other;
};

}  // namespace mr::jinja
