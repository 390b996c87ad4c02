// A conversation with a model: asks, shows the answer as it streams, and keeps the prompt within the context.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/chat/chat.h"
#include "cli/chat/conversation.h"
#include "cli/chat/settings.h"
#include "cli/terminal/raw_terminal.h"
#include "core/progress.h"
#include "engine/chat.h"

namespace mr {

class ChatSession {
 public:
  explicit ChatSession(ChatFlags&);  // loads the model; throws if it cannot
  ChatSession(const ChatSession&) = delete;

  void use(RawTerminal* terminal) { terminal_ = terminal; }  // which reports Ctrl-C during an answer
  bool on_terminal() const { return terminal_; }

  // Throws Error if there is no answer; the conversation is unchanged then. Returns how often Ctrl-C was pressed.
  int ask(const std::string& question);
  int retry();
  void undo();
  void clear();
  void change_model(const std::string& name);  // throws if it cannot be loaded, and keeps the old one

  std::string banner() const;  // the model, in a line
  std::string status() const;  // for /show
  const std::string& model() const { return name_; }
  int vocab() const { return engine_->model().spec().vocab; }

  Conversation conversation;
  ChatSettings settings;
  bool over = false;  // /bye

 private:
  void load(const std::string& model);
  std::vector<int32_t> encode(const std::string& question) const;
  std::vector<int32_t> fit(const std::string& question);
  int room() const { return engine_->room_after(0); }  // tokens of prompt and answer
  void show_prompt_progress(const StepWork&);
  void say_how_it_ended(const TokenEvent& end, bool stopped) const;
  void note(const std::string& text) const;

  ChatFlags& flags_;
  RawTerminal* terminal_ = nullptr;
  std::string name_;
  std::unique_ptr<Engine> engine_;
  std::optional<ChatFormat> format_;
  Progress progress_;
  std::atomic<int> n_prompt_ = 0;  // tokens of the prompt in prefill; 0: none. Atomic: sinks may run on another thread than steps
  std::chrono::steady_clock::time_point asked_;
};

}  // namespace mr
