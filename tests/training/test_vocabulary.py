import pytest

from training.errors import UserError
from training.vocabulary import embedding_rows

MODEL = {"vocab_size": 96}


def data(tokens, highest):
    return {"vocab_size": tokens, "max_token_id": highest}


@pytest.mark.parametrize(
    ("dataset", "resize", "rows"),
    [
        (data(96, 95), False, 96),
        # A tokenizer that has more tokens than the model, of which the data has none.
        (data(100, 95), False, 96),
        (data(100, 95), True, 100),
        (data(100, 99), True, 100),
        # Embeddings beyond the tokenizer's tokens, as many models have, stay.
        (data(90, 89), True, 96),
    ],
)
def test_rows_of_the_embedding(dataset, resize, rows):
    assert embedding_rows(MODEL, dataset, resize) == rows


def test_a_token_without_an_embedding_is_refused_and_the_setting_that_gives_it_one_is_named():
    with pytest.raises(UserError, match=r"the token 96, .* ends at 95.* Set model\.resize_vocabulary to true"):
        embedding_rows(MODEL, data(100, 96), False)
