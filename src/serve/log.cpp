#include "serve/log.h"

#include <spdlog/async.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <chrono>
#include <thread>

#include "core/json.h"

namespace mr {

static constexpr size_t max_lines = 4096;  // in the queue of the writer

// Untrusted text as one line without control characters.
static std::string in_quotes(std::string_view text) {
  return OrderedJson(std::string(text.substr(0, 300))).dump(-1, ' ', true, OrderedJson::error_handler_t::replace);
}

std::string text_of(const RequestLine& r) {
  std::string path = in_quotes(r.path);
  std::string text = fmt::format("{} {} {} {} {:.3f} s", r.id, r.method, path.substr(1, path.size() - 2), r.status, r.seconds);
  if (r.is_completion) {
    text += fmt::format(", {} + {} tokens, {} cached", r.n_prompt, r.n_generated, r.n_cached);
    if (r.ttft_s > 0) text += fmt::format(", first after {:.3f} s", r.ttft_s);
    if (r.tokens_per_s > 0) text += fmt::format(", {:.1f} tokens/s", r.tokens_per_s);
    if (r.stream) text += ", streamed";
  }
  if (!r.error.empty()) text += ": " + in_quotes(r.error);
  return text;
}

std::string json_of(const RequestLine& r) {
  OrderedJson j{{"id", r.id}, {"method", r.method}, {"path", r.path.substr(0, 300)}, {"status", r.status}, {"seconds", r.seconds}};
  if (r.is_completion) {
    j["stream"] = r.stream;
    j["prompt_tokens"] = r.n_prompt;
    j["completion_tokens"] = r.n_generated;
    j["cached_tokens"] = r.n_cached;
    if (r.ttft_s > 0) j["ttft_s"] = r.ttft_s;
    if (r.tokens_per_s > 0) j["tokens_per_s"] = r.tokens_per_s;
  }
  if (!r.error.empty()) j["error"] = r.error.substr(0, 300);
  const std::string text = j.dump(-1, ' ', true, OrderedJson::error_handler_t::replace);
  return text.substr(1, text.size() - 2);
}

struct Log::Writer {
  explicit Writer(const LogOptions& o)
      : json(o.json),
        pool(std::make_shared<spdlog::details::thread_pool>(max_lines, 1)),
        logger(std::make_shared<spdlog::async_logger>("millrace", std::make_shared<spdlog::sinks::stderr_sink_mt>(), pool,
                                                      spdlog::async_overflow_policy::overrun_oldest)) {
    logger->set_pattern(json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v})" : "%Y-%m-%d %H:%M:%S.%e %-5l %v");
    logger->set_level(spdlog::level::from_str(o.level));
  }

  void say(spdlog::level::level_enum level, std::string_view text) {
    try {
      if (logger->should_log(level)) logger->log(level, "{}", json ? "\"message\":" + in_quotes(text) : std::string(text));
    } catch (const std::exception&) {  // logging must not end a request
    }
  }

  const bool json;
  std::shared_ptr<spdlog::details::thread_pool> pool;
  std::shared_ptr<spdlog::async_logger> logger;
};

Log::Log(const LogOptions& options) : writer_(std::make_unique<Writer>(options)) {}

Log::~Log() = default;

void Log::settle() {
  for (int i = 0; i < 50 && writer_->pool->queue_size() > 0; i++) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

void Log::request(const RequestLine& r) {
  try {
    const auto level = r.status >= 500 ? spdlog::level::warn : spdlog::level::info;
    if (writer_->logger->should_log(level)) writer_->logger->log(level, "{}", writer_->json ? json_of(r) : text_of(r));
  } catch (const std::exception&) {
  }
}

void Log::info(std::string_view text) { writer_->say(spdlog::level::info, text); }
void Log::warn(std::string_view text) { writer_->say(spdlog::level::warn, text); }
void Log::error(std::string_view text) { writer_->say(spdlog::level::err, text); }

}  // namespace mr
