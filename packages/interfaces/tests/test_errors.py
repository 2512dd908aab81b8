import pickle

from thalweg.interfaces import PeerDiedError


def test_the_missing_ranks_survive_a_trip_between_processes() -> None:
    error = pickle.loads(pickle.dumps(PeerDiedError("rank 2 died", (2,))))
    assert (str(error), error.ranks) == ("rank 2 died", (2,))


def test_it_may_be_unknown_who_is_missing() -> None:
    assert PeerDiedError("somebody died").ranks == ()
