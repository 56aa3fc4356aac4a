import numpy as np

from components.tokenize_dataset.spool import array_on_disk


def test_an_array_on_disk_has_its_room_before_it_is_written_to(tmp_path):
    array = array_on_disk(tmp_path / "array", np.uint32, 100_000)
    assert array.shape == (100_000,) and not array.any()
    # Of a file of holes, no block would be taken.
    assert (tmp_path / "array").stat().st_blocks * 512 >= array.nbytes
    array[99_999] = 7
    array.flush()
    assert np.fromfile(tmp_path / "array", np.uint32)[-1] == 7
