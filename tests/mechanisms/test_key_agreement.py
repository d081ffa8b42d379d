"""Cards and keys of pairs: published vectors, golden bytes, and what must change or be refused."""

import dataclasses
import hashlib
import hmac
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from strategies.mechanisms.key_agreement import (
    KeyAgreementError,
    PublicCard,
    agree,
    directed_edge_key,
    edge_key,
    public_exchange,
    public_identity,
    sign_card,
    verify_card,
)

TAG = b"run 7"
IDENTITIES = [bytes([each]) * 32 for each in (1, 2)]
EXCHANGES = [bytes([each]) * 32 for each in (3, 4)]
SHARED = bytes(range(32))
ONE, OTHER = (b"a" * 32, b"n" * 16), (b"b" * 32, b"m" * 16)


def hkdf_sha256(secret: bytes, salt: bytes, info: bytes, size: int) -> bytes:
    """RFC 5869, sections 2.2 and 2.3."""
    key = hmac.digest(salt or bytes(32), secret, "sha256")
    block, made = b"", b""
    for number in range(1, -(-size // 32) + 1):
        block = hmac.digest(key, block + info + bytes([number]), "sha256")
        made += block
    return made[:size]


def with_lengths(*fields: bytes) -> bytes:
    return b"".join(len(each).to_bytes(4, "big") + each for each in fields)


# RFC 8032, section 7.1, tests 1 to 3.
@pytest.mark.parametrize(
    ("private", "public"),
    [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        ),
        (
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        ),
    ],
)
def test_identities_are_those_of_rfc_8032(private: str, public: str) -> None:
    assert public_identity(bytes.fromhex(private)).hex() == public


def test_exchange_and_agreement_are_those_of_rfc_7748() -> None:
    # Section 6.1.
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    of_alice = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    of_bob = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert public_exchange(alice).hex() == of_alice
    assert public_exchange(bob).hex() == of_bob
    assert agree(alice, bytes.fromhex(of_bob)).hex() == shared
    assert agree(bob, bytes.fromhex(of_alice)).hex() == shared


def test_the_tests_hkdf_is_that_of_rfc_5869() -> None:
    # Appendix A.1.
    made = hkdf_sha256(
        b"\x0b" * 22, bytes(range(13)), bytes.fromhex("f0f1f2f3f4f5f6f7f8f9"), 42
    ).hex()
    assert made == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )


def test_a_card_is_its_fields_in_order_and_comes_back() -> None:
    card = sign_card(2**64 - 2, TAG, IDENTITIES[0], EXCHANGES[0])
    data = card.to_bytes()
    assert len(data) == 136
    expected = b"\xff" * 7 + b"\xfe" + public_identity(IDENTITIES[0])
    assert data == expected + public_exchange(EXCHANGES[0]) + card.signature
    assert PublicCard.from_bytes(data) == card
    verify_card(PublicCard.from_bytes(data), TAG)


def test_a_card_is_signed_by_its_identity_over_the_run_and_the_other_fields() -> None:
    card = sign_card(5, TAG, IDENTITIES[0], EXCHANGES[0])
    text = with_lengths(
        b"private-fl-app card 1", TAG, bytes(7) + b"\x05", card.identity, card.exchange
    )
    assert card.signature == Ed25519PrivateKey.from_private_bytes(IDENTITIES[0]).sign(text)
    # Golden, from the line above.
    assert (
        hashlib.sha256(card.to_bytes()).hexdigest()
        == "d8c28689298cb57d4582438c90ac4a069b1cc4b14f936fcfa3cb6e8d00e8f3de"
    )


def refuses(card: PublicCard, run_tag: bytes = TAG) -> bool:
    try:
        verify_card(card, run_tag)
    except KeyAgreementError:
        return True
    return False


def test_cards_that_were_changed_or_swapped_are_refused() -> None:
    card, other = (sign_card(n, TAG, IDENTITIES[n], EXCHANGES[n]) for n in (0, 1))
    assert not refuses(card)
    assert not refuses(other)
    for field in ("number", "identity", "exchange", "signature"):
        assert refuses(dataclasses.replace(card, **{field: getattr(other, field)}))
    # A relay that puts its own exchange key in, signed by itself or by nobody.
    assert refuses(dataclasses.replace(other, identity=card.identity))
    assert refuses(dataclasses.replace(card, signature=bytes(64)))
    # A card from another run.
    assert refuses(card, b"run 8")
    assert refuses(sign_card(0, TAG + b"0", IDENTITIES[0], EXCHANGES[0]))


@given(st.integers(0, 8 * 136 - 1))
def test_a_card_with_one_flipped_bit_is_refused(bit: int) -> None:
    data = bytearray(sign_card(0, TAG, IDENTITIES[0], EXCHANGES[0]).to_bytes())
    data[bit // 8] ^= 1 << bit % 8
    assert refuses(PublicCard.from_bytes(bytes(data)))


def test_an_identity_that_is_no_point_is_refused() -> None:
    card = sign_card(0, TAG, IDENTITIES[0], EXCHANGES[0])
    assert refuses(dataclasses.replace(card, identity=b"\x02" + bytes(31)))
    assert refuses(dataclasses.replace(card, identity=b"\xff" * 32))


# The points of order 1, 2, 4 and 8 of curve25519 and its twist (RFC 7748, section 7, and D. J.
# Bernstein's list), with the values that mean the same modulo 2^255 - 19.
P = 2**255 - 19
ORDER_8 = (
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)


@pytest.mark.parametrize("point", [0, 1, P - 1, P, P + 1, *ORDER_8])
def test_points_of_low_order_are_refused(point: int) -> None:
    for high_bit in (0, 2**255):
        with pytest.raises(KeyAgreementError, match="a point of low order"):
            agree(EXCHANGES[0], (point + high_bit).to_bytes(32, "little"))


def derive(**changed: Any) -> bytes:
    arguments = {
        "shared": SHARED,
        "run_tag": TAG,
        "server_round": 3,
        "attempt": 1,
        "ends": (ONE, OTHER),
        "purpose": "gaussian",
    } | changed
    return edge_key(arguments.pop("shared"), **arguments)


def derive_directed(**changed: Any) -> bytes:
    arguments = {
        "shared": SHARED,
        "run_tag": TAG,
        "server_round": 3,
        "attempt": 1,
        "sender": ONE,
        "receiver": OTHER,
        "purpose": "gaussian",
    } | changed
    return directed_edge_key(arguments.pop("shared"), **arguments)


def expected_key(label: bytes, *ends: bytes) -> bytes:
    numbers = (bytes(7) + b"\x03", bytes(7) + b"\x01")
    return hkdf_sha256(SHARED, b"", with_lengths(label, b"gaussian", TAG, *numbers, *ends), 32)


def test_edge_keys_are_the_golden_ones() -> None:
    # Both from the HMAC of the standard library, as RFC 5869 says.
    assert derive() == expected_key(b"private-fl-app edge 1", *ONE, *OTHER)
    assert derive().hex() == "66cb5f29420900be23b473bde6187597f4bb0ba51f43201738da6c1e18e262a4"
    directed = expected_key(b"private-fl-app directed edge 1", *ONE, *OTHER)
    assert derive_directed() == directed
    assert directed.hex() == "16e1c924430cd943c1587fbac36fa908b4693977890e1dcc6c94e1bc9ea913e0"


def test_an_edge_key_is_the_same_at_both_ends_and_a_directed_one_only_with_both_roles() -> None:
    assert derive(ends=(OTHER, ONE)) == derive()
    back = derive_directed(sender=OTHER, receiver=ONE)
    assert len({derive(), derive_directed(), back}) == 3


def test_two_clients_agree_on_their_edge_key_and_a_third_does_not() -> None:
    one, other, third = (bytes([each]) * 32 for each in (5, 6, 7))
    key = derive(shared=agree(one, public_exchange(other)))
    assert derive(shared=agree(other, public_exchange(one))) == key
    assert derive(shared=agree(third, public_exchange(one))) != key
    assert derive(shared=agree(third, public_exchange(other))) != key


NUMBERS = st.integers(0, 2**64 - 1)
NONCES = st.binary(min_size=16, max_size=16)
BYTES_32 = st.binary(min_size=32, max_size=32)
CALLS = st.fixed_dictionaries(
    {
        "shared": st.sampled_from([SHARED, bytes(32)]) | BYTES_32,
        "run_tag": st.binary(min_size=1, max_size=3) | st.just(TAG),
        "server_round": st.integers(0, 3) | NUMBERS,
        "attempt": st.integers(0, 3) | NUMBERS,
        "ends": st.lists(
            st.tuples(st.sampled_from([ONE[0], OTHER[0]]) | BYTES_32, NONCES),
            min_size=2,
            max_size=2,
            unique_by=lambda end: end[0],
        ).map(lambda ends: tuple(sorted(ends))),
        "purpose": st.text(min_size=1, max_size=3) | st.just("gaussian"),
    }
)


@given(CALLS, CALLS)
def test_different_arguments_give_different_keys(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert (derive(**one) == derive(**other)) == (one == other)
    # One changed argument is enough.
    for name, value in other.items():
        assert (derive(**one | {name: value}) == derive(**one)) == (value == one[name])


@given(NONCES, st.sampled_from([0, 1]))
def test_one_end_s_fresh_nonce_makes_the_key_fresh(nonce: bytes, end: int) -> None:
    ends = [ONE, OTHER]
    ends[end] = (ends[end][0], nonce)
    same = nonce == (ONE, OTHER)[end][1]
    assert (derive(ends=tuple(ends)) == derive()) == same
    assert (derive_directed(sender=ends[0], receiver=ends[1]) == derive_directed()) == same


def test_nonces_belong_to_their_identities() -> None:
    swapped = ((ONE[0], OTHER[1]), (OTHER[0], ONE[1]))
    assert derive(ends=swapped) != derive()


def test_fields_do_not_run_into_each_other() -> None:
    assert derive(purpose="ab", run_tag=b"c") != derive(purpose="a", run_tag=b"bc")
    assert derive(server_round=0, attempt=1) != derive(server_round=1, attempt=0)


LONG = b"xyzzy" * 20


@pytest.mark.parametrize("value", [b"", LONG, "a" * 32, None])
def test_values_of_another_length_or_kind_are_refused_and_not_shown(value: Any) -> None:
    key = bytes(32)
    card = sign_card(0, TAG, IDENTITIES[0], EXCHANGES[0])
    calls = [
        lambda: public_identity(value),
        lambda: public_exchange(value),
        lambda: sign_card(0, TAG, value, key),
        lambda: sign_card(0, TAG, key, value),
        lambda: agree(value, public_exchange(key)),
        lambda: agree(key, value),
        lambda: PublicCard.from_bytes(value),
        lambda: dataclasses.replace(card, identity=value),
        lambda: dataclasses.replace(card, exchange=value),
        lambda: dataclasses.replace(card, signature=value),
        lambda: derive(shared=value),
        lambda: derive(ends=((value, ONE[1]), OTHER)),
        lambda: derive(ends=(ONE, (OTHER[0], value))),
        lambda: derive_directed(sender=(value, ONE[1])),
        lambda: derive_directed(receiver=(OTHER[0], value)),
    ]
    for call in calls:
        with pytest.raises(KeyAgreementError, match=r"allowed: \d+ bytes") as caught:
            call()
        assert "xyzzy" not in str(caught.value)


@pytest.mark.parametrize("number", [-1, 2**64, True, 1.0, None])
def test_numbers_out_of_range_are_refused(number: Any) -> None:
    for name in ("server_round", "attempt"):
        with pytest.raises(KeyAgreementError, match=f"{name}: allowed: an integer"):
            derive(**{name: number})
    with pytest.raises(KeyAgreementError, match="number: allowed: an integer"):
        sign_card(number, TAG, *IDENTITIES)
    with pytest.raises(KeyAgreementError, match="number: allowed: an integer"):
        PublicCard(number, bytes(32), bytes(32), bytes(64))


@pytest.mark.parametrize("tag", [b"", "run 7", None])
def test_runs_and_purposes_need_a_name(tag: Any) -> None:
    for call in (derive, derive_directed):
        with pytest.raises(KeyAgreementError, match="run_tag: allowed"):
            call(run_tag=tag)
        with pytest.raises(KeyAgreementError, match="purpose: allowed"):
            call(purpose=b"gaussian" if tag is None else "")
    with pytest.raises(KeyAgreementError, match="run_tag: allowed"):
        sign_card(0, tag, *IDENTITIES)
    with pytest.raises(KeyAgreementError, match="run_tag: allowed"):
        verify_card(sign_card(0, TAG, *IDENTITIES), tag)


def test_both_ends_with_one_identity_are_refused() -> None:
    for call in (
        lambda: derive(ends=(ONE, (ONE[0], OTHER[1]))),
        lambda: derive_directed(receiver=(ONE[0], OTHER[1])),
    ):
        with pytest.raises(KeyAgreementError, match="two different identities"):
            call()
