"""Bytes of one round: NISS's masks beside double-masked secure aggregation. Formulas only.

Secure aggregation is the protocol of Bonawitz et al., "Practical secure aggregation for
privacy-preserving machine learning" (CCS 2017), against an active server: advertise keys, share
keys, masked input, consistency check, unmasking; and SecAgg+ of Bell et al., "Secure single-server
aggregation with (poly)logarithmic overhead" (CCS 2020), where a client deals with k neighbours only
(counted against a server that follows the protocol: no signatures and no consistency check, the
cheaper of its two forms).

Counted alike for all: 32-bit words for the model down and the masked update up, public keys of
Curve25519, no framing and no transport encryption, clients that drop out do so after the keys are
exchanged and before the masked upload (the dearest moment). Where there is a choice, secure
aggregation gets the cheaper one: its clients have one another's identity keys beforehand, sets are
sent as bitmaps, shares carry no index.
"""

from dataclasses import dataclass

NUMBER = 8
"""Bytes of a client's number."""
PUBLIC_KEY = 32
"""Bytes of an X25519 or Ed25519 public key."""
SIGNATURE = 64
"""Bytes of an Ed25519 signature."""
NONCE = 16
"""Bytes of NISS's nonce, fresh for each round and attempt."""
WORD = 4
"""Bytes of a parameter: of the model sent down and of the masked update sent up."""
CARD = NUMBER + 2 * PUBLIC_KEY + SIGNATURE
"""Bytes of what a client of NISS registers: number, identity key, agreement key, signature."""
SEED_SHARE = 16
"""Bytes of a share of a self mask's seed, in a prime field just below 2^128."""
KEY_SHARE = 32
"""Bytes of a share of a masking key, in a prime field just below 2^256."""
SEAL = 12 + 16
"""Bytes that AES-GCM adds: nonce and tag."""
SEALED_SHARES = SEAL + 2 * NUMBER + KEY_SHARE + SEED_SHARE
"""Bytes of two shares for one peer, encrypted: u || v || key share || seed share."""


@dataclass(frozen=True)
class Traffic:
    """Payload bytes of one round.

    ``client_up`` and ``client_down`` are those of a client that stays to the end, ``server_in`` and
    ``server_out`` of all clients together; ``messages`` is how many times that client sends.
    """

    client_up: int
    client_down: int
    server_in: int
    server_out: int
    messages: int

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.client_up + other.client_up,
            self.client_down + other.client_down,
            self.server_in + other.server_in,
            self.server_out + other.server_out,
            self.messages + other.messages,
        )


def count_dropouts(num_clients: int, percent: int) -> int:
    """Return how many clients ``percent`` of them are, rounded up."""
    return -(-num_clients * percent // 100)


def niss_traffic(num_clients: int, size: int, dropped: int = 0, repeat: bool = False) -> Traffic:
    """Return the bytes of a round of NISS.

    Up: a nonce ("ready"), then a word a parameter. Down: the model, and for each ready peer its
    card and its nonce. Who is registered stays so: ``registration_bytes`` comes once a run.

    Parameters
    ----------
    num_clients : int
        Clients that said "ready".
    size : int
        Parameters of the model.
    dropped : int
        Clients of these that upload nothing.
    repeat : bool
        Whether the round is then done again among those that stayed, with the model sent again and
        nobody dropping out this time. Without it the sum keeps the residual noise.
    """
    down = WORD * size + (CARD + NONCE) * (num_clients - 1)
    once = Traffic(
        client_up=NONCE + WORD * size,
        client_down=down,
        server_in=NONCE * num_clients + WORD * size * (num_clients - dropped),
        server_out=down * num_clients,
        messages=2,
    )
    if not repeat:
        return once
    return once + niss_traffic(num_clients - dropped, size)


def double_masking_traffic(
    num_clients: int,
    size: int,
    dropped: int = 0,
    num_neighbours: int | None = None,
    active: bool = True,
) -> Traffic:
    """Return the bytes of a round of double-masked secure aggregation.

    A client, with k peers of which e drop out, sends (1) two public keys and a signature, (2) for
    each peer its number and two sealed shares, (3) a word a parameter, (4) a signature of the set
    that uploaded, (5) a seed share of each one that stayed, itself too, and a key share of each one
    that did not. It gets (1) each peer's number, keys and signature, (2) the sealed shares meant
    for it with the senders' numbers, and the model, (3) the set that uploaded, (4) the signatures
    of that set by its peers that stayed.

    Parameters
    ----------
    num_clients : int
        Clients that shared keys.
    size : int
        Parameters of the model.
    dropped : int
        Clients of these that upload nothing.
    num_neighbours : int or None
        k; None for all others. With fewer, e is the expected number, rounded.
    active : bool
        Whether the server may deviate: signatures of the keys, and messages (4).
    """
    peers = num_clients - 1 if num_neighbours is None else num_neighbours
    gone = round(peers * dropped / (num_clients - 1))
    stayed = peers - gone
    signature = SIGNATURE if active else 0
    shares = peers * (NUMBER + SEALED_SHARES)
    bitmap = -(-(peers + 1) // 8)
    up_before = 2 * PUBLIC_KEY + signature + shares
    down_before = peers * (NUMBER + 2 * PUBLIC_KEY + signature) + shares + WORD * size
    up = up_before + WORD * size + signature + SEED_SHARE * (stayed + 1) + KEY_SHARE * gone
    down = down_before + bitmap + stayed * signature
    staying = num_clients - dropped
    return Traffic(
        client_up=up,
        client_down=down,
        server_in=staying * up + dropped * up_before,
        server_out=staying * down + dropped * down_before,
        messages=5 if active else 4,
    )


def registration_bytes(num_registered: int) -> dict[str, int]:
    """Return the bytes that the server takes in once, before the first round.

    NISS registers cards; secure aggregation a number and an identity key, for the public-key
    infrastructure that it presumes (its masking keys are new each round).
    """
    return {
        "niss": CARD * num_registered,
        "double masking": (NUMBER + PUBLIC_KEY) * num_registered,
    }


def threshold_of(num_clients: int) -> int:
    """Return the shares needed against an active server with up to a third colluding.

    floor(2n/3) + 1 (Bonawitz et al. 2017): a server that tells the honest two different stories
    about one client gets the colluders' shares of both its secrets and each honest client's share
    of one, fewer than 2t in all.
    """
    return 2 * num_clients // 3 + 1


def choose_neighbours(
    num_clients: int,
    colluding: float = 0.2,
    dropping: float = 0.3,
    log2_failure: tuple[int, int] = (40, 30),
) -> tuple[int, int]:
    """Return SecAgg+'s smallest number of neighbours k, even, and its threshold t.

    The three ways in which a random Harary graph of n clients can fail, each bounded over all
    clients. For secrecy, by 2^-``log2_failure[0]``: t or more of somebody's neighbours collude; the
    graph of the honest that stay falls apart, for which k/2 neighbours in a row must be missing,
    n (colluding + dropping)^(k/2). For the result, by 2^-``log2_failure[1]``: fewer than t of
    somebody's neighbours stay. Both counts are hypergeometric. Where no k below n - 1 does it, the
    graph is complete and t is ``threshold_of(n)``.

    Derived for this bench from what the proof of Bell et al. (2020) asks for; their tables are not
    used. Colluders and dropouts are fixed before the graph is drawn.
    """
    import numpy as np
    from scipy.stats import hypergeom

    secrecy, result = (2.0**-bits for bits in log2_failure)
    others, colluders = num_clients - 1, int(colluding * num_clients)
    staying = others - int(dropping * num_clients)
    for k in range(2, others, 2):
        if num_clients * (colluding + dropping) ** (k / 2) > secrecy:
            continue
        too_many = num_clients * hypergeom(others, colluders, k).sf(np.arange(k))
        too_few = num_clients * hypergeom(others, staying, k).cdf(np.arange(k))
        possible = np.flatnonzero((too_many <= secrecy) & (too_few <= result))
        if len(possible):
            return k, int(possible[0]) + 1
    return others, threshold_of(num_clients)


def residual_variance(num_clients: int, dropped: int) -> tuple[float, float]:
    """Return the variance of NISS's sum if nobody and if ``dropped`` drop out, Gaussian pairs.

    In units of the variance that protects each client (local noise alone: one unit a client); no
    colluders, so h = M. With w = sqrt(m) for m expected dropouts, w = 0.05 for none: s_ind^2 =
    (1 + w)/h, s_pair^2 = s_ind^2 (1 - s_ind^2)/w; after m dropouts the survivors' sum has variance
    (M - m)(s_ind^2 + m s_pair^2). GOPA (arXiv 2006.07218) with the calibration of this product.
    """
    w = dropped**0.5 if dropped else 0.05
    own = (1 + w) / num_clients
    pair = own * (1 - own) / w
    return num_clients * own, (num_clients - dropped) * (own + dropped * pair)
