"""Language models on this machine.

    from millrace import LLM, SamplingParams

    llm = LLM("HuggingFaceTB/SmolLM2-135M-Instruct")       # a name, a directory, a .gguf file; nothing: the default model
    for answer in llm.generate(["Once upon", "Two and two"], SamplingParams(temperature=0, max_tokens=16)):
        print(answer.outputs[0].text)
    for piece in llm.stream_chat([{"role": "user", "content": "Hello!"}]):
        print(piece.text, end="", flush=True)

An LLM may be used by many threads: their requests run together. What goes wrong is a millrace.Error with a sentence.
"""
import difflib
import json
import weakref
from dataclasses import dataclass, field, fields
from typing import Any, Dict, Iterator, List, Optional, Sequence, Union

try:
    from millrace import _engine
except ImportError as error:
    from millrace._build import MODULE_NEEDS

    raise ImportError(f"{MODULE_NEEDS} (the command `millrace` works with any Python)") from error

from millrace._build import VERSION as __version__

__all__ = ["LLM", "SamplingParams", "RequestOutput", "CompletionOutput", "Logprob", "Error", "__version__"]

Error = _engine.Error
Prompt = Union[str, Sequence[int]]
Messages = Sequence[Dict[str, Any]]

# What other engines call these.
_KNOWN_ELSEWHERE = {
    "max_model_len": "max_context", "n_ctx": "max_context", "max_num_seqs": "max_seqs", "max_num_batched_tokens": "max_batch_tokens",
    "gpu_memory_utilization": "memory", "swap_space": "swap", "kv_cache_dtype": "kv_dtype", "mamba_ssm_cache_dtype": "state_dtype",
    "enable_prefix_caching": "prefix_cache", "block_size": "page_tokens", "n_threads": "threads",
}


@dataclass
class SamplingParams:
    """What is None is as the model's generation_config.json has it, else plain sampling of up to 256 tokens."""

    n: int = 1  # answers
    temperature: Optional[float] = None  # 0: the likeliest token
    top_k: Optional[int] = None  # 0: all
    top_p: Optional[float] = None
    min_p: Optional[float] = None
    repetition_penalty: Optional[float] = None
    frequency_penalty: Optional[float] = None
    presence_penalty: Optional[float] = None
    logit_bias: Optional[Dict[int, float]] = None
    seed: Optional[int] = None  # same seed, same answer, alone or in a crowd
    max_tokens: Optional[int] = None
    stop: Union[str, List[str], None] = None
    ignore_eos: bool = False
    logprobs: Optional[int] = None  # alternatives a token; 0: of the token itself alone; None: none are returned


@dataclass
class Logprob:
    logprob: float  # of the model, before temperature and penalties
    decoded_token: Optional[str]  # None: the model has no tokenizer


@dataclass
class CompletionOutput:
    """An answer, or the next piece of one."""

    index: int
    text: str = ""
    token_ids: List[int] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    logprobs: Optional[List[Dict[int, Logprob]]] = None  # of each token, the alternatives beside it
    finish_reason: Optional[str] = None  # stop, length; None: there is more


@dataclass
class RequestOutput:
    prompt: Optional[str]  # None: it was given as token ids or messages
    prompt_token_ids: List[int]
    outputs: List[CompletionOutput]
    num_cached_tokens: int = 0  # of the prompt, from the prefix cache
    timing: Dict[str, float] = field(default_factory=dict)  # of the first answer: ttft_s, prefill_tokens_per_s, decode_tokens_per_s


class LLM:
    """A model, loaded. Options are the command line's: device, threads, max_context, max_seqs, memory, ..."""

    def __init__(self, model: str = "", **options: Any):
        chosen = _engine.Options()
        for name, value in options.items():
            if name.startswith("_") or not hasattr(chosen, name):
                raise TypeError(f"LLM() has no option '{name}'{_suggestion(name, [o for o in dir(chosen) if not o.startswith('_')])}")
            _set(chosen, name, value)
        engine = _engine.Engine.load(str(model), chosen)
        self._engine: Any = engine
        self._close = weakref.finalize(self, engine.close)  # also at the end of the program

    def generate(self, prompts: Union[Prompt, Sequence[Prompt]], params: Union[SamplingParams, Sequence[SamplingParams], None] = None,
                 *, priority: int = 0) -> List[RequestOutput]:
        """Answers to one prompt (text, or token ids) or to each of several, which run together; params are for all, or one a prompt."""
        if isinstance(prompts, (str, bytes, dict)) or (len(prompts) > 0 and isinstance(prompts[0], int)):
            prompts = [prompts]
        return self._answer([self._encode(p) for p in prompts], [p if isinstance(p, str) else None for p in prompts], params, priority)

    def chat(self, messages: Union[Messages, Sequence[Messages]], params: Union[SamplingParams, Sequence[SamplingParams], None] = None, *,
             priority: int = 0, **template: Any) -> List[RequestOutput]:
        """The next turn of one conversation ([{"role", "content"}, ...]) or of each of several. Further keywords: chat_template (Jinja),
        tools, and whatever else the template asks for (enable_thinking=False)."""
        if len(messages) > 0 and isinstance(messages[0], dict):
            messages = [messages]
        return self._answer([self._encode_chat(m, template) for m in messages], [None] * len(messages), params, priority)

    def stream(self, prompt: Prompt, params: Optional[SamplingParams] = None, *, priority: int = 0) -> Iterator[CompletionOutput]:
        """The pieces of the answers as they come. An iterator that is closed, or dropped, cancels the rest."""
        return self._pieces(self._submit(self._encode(prompt), params, priority), params)

    def stream_chat(self, messages: Messages, params: Optional[SamplingParams] = None, *, priority: int = 0,
                    **template: Any) -> Iterator[CompletionOutput]:
        """Like stream(), of the next turn of a conversation."""
        return self._pieces(self._submit(self._encode_chat(messages, template), params, priority), params)

    def tokenize(self, text: str) -> List[int]:
        """With the special tokens that the model expects around a text."""
        return self._engine.encode(text)

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._engine.decode(list(token_ids), skip_special_tokens)

    @property
    def max_context(self) -> int:
        return self._engine.max_context()

    def close(self) -> None:
        """Ends what runs and frees the model; the object is of no use afterwards."""
        self._close()
        self._engine = _Closed()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _encode(self, prompt: Prompt) -> List[int]:
        if isinstance(prompt, str):
            return self._engine.encode(prompt)
        if isinstance(prompt, (dict, bytes)) or not all(isinstance(token, int) for token in prompt):
            raise TypeError(f"a prompt is text or a list of token ids, not {type(prompt).__name__}")
        return list(prompt)

    def _encode_chat(self, messages: Messages, template: Dict[str, Any]) -> List[int]:
        if not all(isinstance(message, dict) for message in messages):
            raise TypeError('a conversation is a list of messages: [{"role": "user", "content": "Hello!"}]')
        extra = {name: value for name, value in template.items() if name != "chat_template"}
        return self._engine.encode_chat(json.dumps(list(messages)), json.dumps(extra), template.get("chat_template") or "")

    def _submit(self, prompt: List[int], params: Optional[SamplingParams], priority: int) -> Any:
        params = params or SamplingParams()
        request = self._engine.request(prompt)
        _set(request, "priority", priority)
        sampling = request.sampling
        for item in fields(params):
            value = getattr(params, item.name)
            if item.name == "stop" and isinstance(value, str):
                value = [value]
            if value is not None:
                _set(request if item.name == "n" else sampling, item.name, value)
        if params.max_tokens is None:
            sampling.max_tokens = min(sampling.max_tokens, self._engine.room_after(len(prompt)) or sampling.max_tokens)
        return _engine.Stream(self._engine, request)

    def _answer(self, encoded: List[List[int]], texts: List[Optional[str]], params: Any, priority: int) -> List[RequestOutput]:
        each = list(params) if isinstance(params, (list, tuple)) else [params] * len(encoded)
        if len(each) != len(encoded):
            raise ValueError(f"{len(encoded)} prompts came with {len(each)} sampling parameters")
        streams: List[Any] = []
        try:
            for tokens, asked in zip(encoded, each):
                streams.append(self._submit(tokens, asked, priority))
            return [self._gather(*request) for request in zip(streams, texts, encoded, each)]
        finally:
            for stream in streams:
                stream.cancel()

    def _gather(self, stream: Any, text: Optional[str], tokens: List[int], params: Optional[SamplingParams]) -> RequestOutput:
        out = RequestOutput(text, tokens, [CompletionOutput(i, logprobs=_wanted(params)) for i in range(params.n if params else 1)])
        for event in iter(stream.next, None):
            piece, answer = self._piece(event, params), out.outputs[event.index]
            answer.text += piece.text
            answer.token_ids += piece.token_ids
            answer.cumulative_logprob += piece.cumulative_logprob
            answer.finish_reason = piece.finish_reason
            if answer.logprobs is not None:
                answer.logprobs += piece.logprobs or []
            if piece.finish_reason and event.index == 0:
                out.num_cached_tokens = event.timing.num_cached_tokens
                out.timing = {name: getattr(event.timing, name) for name in ("ttft_s", "prefill_tokens_per_s", "decode_tokens_per_s")}
        return out

    def _pieces(self, stream: Any, params: Optional[SamplingParams]) -> Iterator[CompletionOutput]:
        try:
            for event in iter(stream.next, None):
                yield self._piece(event, params)
        finally:
            stream.cancel()

    def _piece(self, event: Any, params: Optional[SamplingParams]) -> CompletionOutput:
        logprobs = _wanted(params)
        if logprobs is not None:
            for sampled in event.sampled:
                likely = {entry.token: entry.logprob for entry in sampled.top}
                likely.setdefault(sampled.token, sampled.logprob)
                logprobs.append({token: Logprob(value, self._engine.piece(token)) for token, value in likely.items()})
        total = sum(sampled.logprob for sampled in event.sampled)
        return CompletionOutput(event.index, event.text, event.token_ids, total, logprobs, event.finish_reason)


class _Closed:
    """In place of the engine of an LLM that was closed."""

    def __getattr__(self, name: str) -> Any:
        raise Error("this LLM is closed")


def _wanted(params: Optional[SamplingParams]) -> Optional[list]:
    return [] if params and params.logprobs is not None else None


def _set(options: Any, name: str, value: Any) -> None:
    try:
        setattr(options, name, value)
    except TypeError:
        raise TypeError(f"{name}={value!r} is not of a type that {name} can have") from None


def _suggestion(name: str, known: List[str]) -> str:
    near = _KNOWN_ELSEWHERE.get(name) or next(iter(difflib.get_close_matches(name, known, 1)), None)
    return f": did you mean {near}?" if near else f": it has {', '.join(known)}"
