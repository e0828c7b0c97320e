#!/usr/bin/env bash
# Tune several languages in one run, export them as one pack, and serve that from one process.
# The tutorial that goes with it is docs/guides/languages.md.
#
#   bash examples/languages.sh WORK [options of 'mirror-rt tune']
#
# WORK is the folder to write; run again, the script goes on where it was stopped. LANGS chooses the
# languages, BASE one base model for all of them (a folder or hub name; by default, each has its
# own). Needs mirror-rt with the extras cpu, train, export and demo.
set -euo pipefail
work=${1:?usage: bash examples/languages.sh WORK [options of mirror-rt tune]}
shift
langs=${LANGS:-en,fr,ru,zh,ar}

echo "== base models and hyper-parameters of $langs"
mirror-rt recipes --level word | grep -E "^(language|${langs//,/|}) "

echo "== tune"
mirror-rt tune --lang "$langs" --recipe word ${BASE:+--model "$BASE"} \
  --out "$work/tuned" --resume --quiet "$@"

echo "== export"
mirror-rt export --all "$work/tuned" --out "$work/pack" --resume
mirror-rt info "$work/pack"

echo "== serve"
python - "$work/pack" <<'PYTHON'
import sys

from mirror_rt import LanguagePack

GREETINGS = {"en": "good morning", "fr": "bonjour", "ru": "доброе утро", "zh": "早上好",
             "ar": "صباح الخير", "et": "tere hommikust", "es": "buenos días"}

with LanguagePack.load(sys.argv[1]) as pack:
    tags = pack.languages
    pack.encode("hello")
    size = pack.statistics.bytes  # of one bundle; those of large vocabularies count for more

# Room for about two languages at a time; the first stays. Each language has a vector space of its
# own, so rows of different languages are not compared here.
options = {"memory_limit": 2.5 * size, "pinned": tags[:1], "mixed_spaces": True}
with LanguagePack.load(sys.argv[1], **options) as pack:
    texts = [GREETINGS.get(tag, "hello") for tag in tags]
    vectors = pack.encode(texts, lang=tags)
    stats = pack.statistics
    print(f"{len(texts)} texts in {len(tags)} languages: {vectors.shape} {vectors.dtype}")
    print(f"loaded now: {', '.join(stats.loaded)}; {stats.loads} loads, {stats.evictions} evictions,"
          f" {stats.bytes / 1e6:.0f} of at most {stats.limit / 1e6:.0f} MB")
PYTHON
