#include "serve/call.h"

namespace mr {

static constexpr int left = 499;  // nginx's code: the client closed the connection

Server::Call::Call(Server& server, Asked asked, Charge charge, std::shared_ptr<Responder> out, Headers headers, RequestLine line)
    : server_(server),
      asked_(std::move(asked)),
      charge_(std::move(charge)),
      n_asked_bytes_(asked_.bytes()),
      out_(std::move(out)),
      headers_(std::move(headers)),
      line_(std::move(line)),
      writer_(asked_, server.model_) {
  parts_.reserve(asked_.prompts.size());
  line_.is_completion = true;
  line_.stream = asked_.stream;
  line_.n_prompt = asked_.n_prompt_tokens();
}

// On any thread.
Server::Call::~Call() {
  for (Part& part : parts_) close_part(part);
  if (over_) return;
  try {  // the engine could not deliver the last event
    const ApiError error{500, "the answer was lost"};
    out_->post([out = out_, stream = asked_.stream, bytes = "data: " + error_body(error) + "\n\n", whole = error_response(error)] {
      if (stream) out->push(bytes);
      if (stream) out->end_stream();
      if (!stream) out->send(whole);
    });
  } catch (const std::exception&) {  // no memory: the client has to time out
  }
}

void Server::Call::begin() {
  const int n_prompts = int(asked_.prompts.size());
  if (!hold()) throw ApiError(503, "there is no memory for the request now: clients hold too much", "", "no_memory");
  Queue::Place place = server_.queue_.join({asked_.n_choices(), asked_.n_prompt_tokens()});
  try {
    for (int p = 0; p < n_prompts; p++) submit(p, place.split({asked_.n, int64_t(asked_.prompts[size_t(p)].size())}));
    over_ = false;
    out_->on_hang_up([weak = weak_from_this()] {
      auto self = weak.lock();
      if (!self) return;
      self->note(left, "the client left");
      self->abandon();
    });
    if (asked_.stream) open_stream();
  } catch (const ApiError&) {
    abandon();
    throw;
  } catch (const Error& e) {
    abandon();
    refuse(asked_.chat ? "messages" : "prompt", "{}", e.what());
  } catch (...) {
    abandon();
    throw;
  }
}

void Server::Call::open_stream() {
  Headers headers = headers_;
  headers.emplace_back("Cache-Control", "no-cache");
  out_->begin_stream({.type = "text/event-stream", .headers = std::move(headers)});
}

void Server::Call::submit(int prompt, Queue::Place place) {
  // On the engine's thread: only posts to the strand.
  auto sink = [self = shared_from_this(), prompt, place = std::make_shared<Queue::Place>(std::move(place))](const TokenEvent& event) {
    place->leave();
    self->out_->post([self, prompt, event] { self->take(prompt, event); });
  };
  int64_t id = server_.engine_->submit(asked_.request_of(size_t(prompt)), std::move(sink));
  parts_.push_back({id, asked_.n});
  server_.note_begin(id);
}

void Server::Call::close_part(Part& part) {
  if (part.n_open > 0) server_.note_end(part.id);
  part.n_open = 0;
}

void Server::Call::take(int prompt, const TokenEvent& event) {
  Part& part = parts_[size_t(prompt)];
  if (event.finish != Finish::none) {
    if (part.n_open == 1) close_part(part);
    if (part.n_open > 1) part.n_open--;
    line_.n_generated += event.timing.n_generated;
    line_.n_cached += event.timing.n_cached;
    const double end = event.timing.last_token_s, first = event.timing.first_token_s;
    if (first > 0 && (line_.ttft_s == 0 || first < line_.ttft_s)) line_.ttft_s = first;
    last_token_s_ = std::max(last_token_s_, end);
    server_.metrics_.answered(event, std::chrono::duration<double>(Clock::now() - came_).count());
  }
  if (over_) return;
  if (event.finish == Finish::error) return fail({500, event.error});
  if (event.finish == Finish::cancelled) return fail({503, "the server is shutting down"});
  std::string bytes = writer_.add(prompt, event);
  if (asked_.stream && !bytes.empty() && !out_->push(std::move(bytes))) return abandon();
  if (!hold()) return fail({503, "there is no memory for the answer now: stream it, or ask for less", "", "no_memory"});
  if (writer_.complete()) finish();
}

bool Server::Call::hold() {
  constexpr size_t ahead = 4 << 10;  // bytes charged in advance, so that a connection cut for the next ones has time to release them
  const size_t n = n_asked_bytes_ + writer_.bytes();
  if (writer_.bytes() > server_.options_.http.memory / 4) return false;
  if (charge_.set(n + ahead)) return true;
  out_->make_room(charge_.n_missing());
  return charge_.set(n);
}

// A long answer is written out by a worker: the strand's thread has other connections to serve.
void Server::Call::finish() {
  constexpr size_t quick = 256 << 10;  // bytes, of a millisecond
  over_ = true;
  note(200, "");
  if (asked_.stream) {
    out_->push(writer_.stream_end());
    return out_->end_stream();
  }
  if (writer_.bytes() <= quick) return send_whole(writer_.whole());
  out_->work(Lane::large, [self = shared_from_this()] {
    self->out_->post([self, body = std::make_shared<std::string>(self->writer_.whole())] { self->send_whole(std::move(*body)); });
  });
}

void Server::Call::send_whole(std::string body) {
  (void)charge_.set(0);  // the connection pays for it now
  out_->send({.body = std::move(body), .headers = headers_});
}

void Server::Call::fail(const ApiError& error) {
  abandon();
  note(error.status, error.what());
  if (!asked_.stream) {
    HttpResponse whole = error_response(error);
    whole.headers.insert(whole.headers.end(), headers_.begin(), headers_.end());
    return out_->send(std::move(whole));
  }
  out_->push("data: " + error_body(error) + "\n\n");
  out_->end_stream();
}

void Server::Call::note(int status, const std::string& error) {
  if (noted_) return;
  noted_ = true;
  line_.status = status;
  line_.error = error;
  line_.seconds = std::chrono::duration<double>(Clock::now() - came_).count();
  if (line_.n_generated > 1 && last_token_s_ > line_.ttft_s)
    line_.tokens_per_s = double(line_.n_generated - 1) / (last_token_s_ - line_.ttft_s);
  if (status != left) server_.metrics_.responded(asked_.stream ? 200 : status);  // a stream began with 200
  server_.log_.request(line_);
}

void Server::Call::abandon() {
  over_ = true;
  for (const Part& part : parts_)
    if (part.n_open > 0) server_.engine_->cancel(part.id);
}

}  // namespace mr
