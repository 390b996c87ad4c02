"""A model with random weights, a tokenizer and a chat template, for tests that need any text: it loads in milliseconds
and answers thousands of tokens a second, under a sanitizer too."""

import json
import pathlib
import tempfile

FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures"
CHAT = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n")
_folders = []  # deleted with the process


def tiny_model(template=CHAT, tokenizer=None, **config):
    """Command-line arguments that select it."""
    _folders.append(tempfile.TemporaryDirectory(prefix="millrace-"))
    folder = pathlib.Path(_folders[-1].name)
    own = json.loads((FIXTURES / "models" / "llama_gqa" / "config.json").read_text())
    tokenizer = tokenizer or json.loads((FIXTURES / "text" / "smollm2.tokenizer.json").read_text())
    (folder / "config.json").write_text(json.dumps({**own, "vocab_size": len(tokenizer["model"]["vocab"]), "max_position_embeddings": 2048, **config}))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return [folder, "--random-weights", 1]
