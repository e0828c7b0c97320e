"""A damaged part of a job costs the texts from it on, not the whole job."""

import logging

import numpy as np
import pytest

from mirror_rt.bulk import BulkConfig, encode_file
from mirror_rt.bulk.job import JobFolder
from mirror_rt.inference.load_options import LoadOptions


def damage_end(content):
    return content[:-100]


def damage_middle(content):
    place = len(content) // 2
    return content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :]


def no_archive(content):
    return b"no archive"


@pytest.mark.parametrize("damage", [damage_end, damage_middle, no_archive])
def test_it_goes_on_at_the_damaged_part(bundle, tmp_path, monkeypatch, caplog, damage):
    source, output = tmp_path / "rows.txt", tmp_path / "v.npy"
    source.write_text("".join(f"river {i}\n" for i in range(50)))

    def config(out=output, **options):
        return BulkConfig(str(bundle), str(source), str(out), window=10,
                          load=LoadOptions(threads=1), **options)  # fmt: skip

    encode_file(config(tmp_path / "whole.npy"))
    save = JobFolder.save

    def stop_at_the_last(job, *saved):
        if job.parts == 4:
            raise KeyboardInterrupt
        save(job, *saved)

    with monkeypatch.context() as patch:
        patch.setattr(JobFolder, "save", stop_at_the_last)
        with pytest.raises(KeyboardInterrupt):
            encode_file(config())
    part = tmp_path / "v.npy.partial/part-00000002.npz"
    part.write_bytes(damage(part.read_bytes()))
    with caplog.at_level(logging.WARNING):
        report = encode_file(config(resume=True))
    assert report.resumed == 20
    assert f"{part} is damaged" in caplog.text
    assert output.read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert len(np.load(output)) == 50
