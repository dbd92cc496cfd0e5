"""Forms by which secrets show themselves wherever they stand: the prefixes that services give them, and randomness."""

from __future__ import annotations

import base64
import binascii
import re

#: Prefixes that stand for nothing else; at least eight more characters follow.
_PREFIXES = """
    sk-ant- sk-proj- sk-svcacct- sk-or-v1- sk-lf- pk-lf- sk_live_ sk_test_ rk_live_ rk_test_ pk_live_ pk_test_ whsec_
    ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- gldt- glrt- glptt- glcbt- glsoat- glft- glimt- glagent- gloas- GR1348941
    xoxa- xoxb- xoxc- xoxd- xoxe- xoxo- xoxp- xoxr- xoxs- xoxe.xoxb- xoxe.xoxp- xapp- pypi-AgE dckr_pat_ dckr_oat_
    dop_v1_ doo_v1_ dor_v1_ HRKU- wandb_v1_ KGAT_ hvs. hvb. hvr. tgp_v1_ nvapi- ya29. GOCSPX- AGE-SECRET-KEY-1
    sntrys_ sntryu_ NRAK- NRII- NRJS- glsa_ lin_api_ lin_oauth_ ATATT3 ATCTT3 sbp_ sb_secret_ pcsk_ lsv2_pt_ lsv2_sk_
    shpat_ shpca_ shppa_ shpss_ sq0csp- sq0atp- dp.pt. dp.st. pscale_tkn_ pscale_pw_ pscale_oauth_ CCIPAT_ CCIPRJ_
    PMAK- esecret_
"""
#: Prefixes that could begin a name; sixteen letters and digits without a break follow, not all of them small letters.
_SHORT_PREFIXES = """
    fw_ r8_ key- secret_ npm_ gsk_ pplx- xai- pul- csk- rpa_ rnd_ napi_ jina_ nfp_ sgp_ ntn_ glc_ ls__ pnu_ pnb_ fm2_
    vcp_ api_org_ bkua_ figd_ rubygems_ tvly- tvly-dev- ABSK
"""

_OTHERS = r"""
    hf_(?:[A-Za-z0-9]{12,}|(?=[A-Za-z0-9]*[A-Z0-9])[A-Za-z0-9]{8,})
    sk-(?:[A-Za-z0-9]{12,}|(?=[a-z-]*[A-Z0-9])[A-Za-z0-9_-]{8,})
    A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{12,}
    AIza[A-Za-z0-9_-]{30,}
    1//0[A-Za-z0-9_-]{30,}
    dapi[0-9a-f]{32}(?:-\d)?
    eyJ[A-Za-z0-9_-]{16,}(?:\.[A-Za-z0-9_-]*)*={0,2}
    SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}
    \d{8,10}:[A-Za-z0-9_-]{35}
    [MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6,7}\.[A-Za-z0-9_-]{27,}
    pat[A-Za-z0-9]{14}\.[0-9a-f]{64}
    ATBB[A-Za-z0-9]{28,}
    SK[0-9a-f]{32}
    sk_[0-9a-f]{40,}
    AKCp[A-Za-z0-9]{60,}
    sl\.[A-Za-z0-9_-]{60,}
    EAAA?[A-Za-z0-9_-]{60,}
    [0-9a-f]{32}-us\d{1,2}
    [0-9a-f]{36}NRAL
    v1\.0-[0-9a-f]{24}-[0-9a-f]{60,}
    [A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_-]{30,}
    [A-Za-z0-9_~.-]{3}\dQ~[A-Za-z0-9_~.-]{31,34}
"""


def _any_of(prefixes: str) -> str:
    # The longest first: one may begin like another.
    return f"(?:{'|'.join(map(re.escape, sorted(prefixes.split(), key=len, reverse=True)))})"


_FREE = r"(?<![A-Za-z0-9])"
_FORMS = [
    _FREE + _any_of(_PREFIXES) + r"[A-Za-z0-9_.=+/-]{8,}",
    _FREE + _any_of(_SHORT_PREFIXES) + r"(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{16,}",
    *(_FREE + form for form in _OTHERS.split()),
    # Where a message can be sent to by whoever knows the address.
    r"(?<=hooks\.slack\.com/)(?:services|workflows|triggers)/[^\s\"'<>]+",
    r"(?<=/api/webhooks/)\d+/[^\s\"'<>]+",
    r"(?<=\.office\.com/)webhook[^\s\"'<>]+",
    r"(?<=api\.telegram\.org/)bot[^\s\"'<>/]+",
    # Also with the ends of lines written as \n, and cut off before its end.
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----(?:(?!-----)[\s\S])*(?:-----END [A-Z0-9 ]{0,60}-----)?",
    r"(?<=\b[Bb]earer )(?=[a-z.-]*[A-Z0-9_~+/=])[A-Za-z0-9._~+/=-]{8,}",
    # A password may hold "@" and "/"; a port is no password.
    r"(?<=://)[^\s\"'<>/:@]{0,256}:(?!\d{1,5}(?:[/?#]|$))[^\s\"'<>]{0,1024}(?=@)",
    r"(?<=://)[A-Za-z0-9_-]{16,}(?=@)",
]
_FORM = re.compile("|".join(_FORMS))
_BASIC = re.compile(r"(?<=\b[Bb]asic )[A-Za-z0-9+/]{6,}={0,2}")
#: Anything that could be a word of its own and is long enough.
_WORD = re.compile(r"[^\s=:,;\"'()\[\]{}<>|&?#@$*!`]{20,}")
_RUN = re.compile(r"[A-Za-z0-9]{20,}")
#: The parts of a name written LikeThis2.
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def without_forms(text: str, mask: str) -> str:
    """Return ``text`` with ``mask`` in place of everything that has the form of a known kind of secret.

    >>> without_forms("pushed with hf_AbCdEfGhIjKlMnOp to https://me:pass-word@example.org/x", "***")
    'pushed with *** to https://***@example.org/x'
    """
    text = _FORM.sub(mask, text)
    return _BASIC.sub(lambda found: mask if _is_user_and_password(found[0]) else found[0], text)


def without_random_words(text: str, mask: str) -> str:
    """Return ``text`` with ``mask`` in place of words that only a generator of keys writes.

    Hashes and ids in hexadecimal digits stay, and so do paths: they look random and people need to read them.

    >>> without_random_words("Qwen2AudioForConditionalGeneration of 1b2c3d4e5f60718293a4b5c6d7e8f9012345abcd", "***")
    'Qwen2AudioForConditionalGeneration of 1b2c3d4e5f60718293a4b5c6d7e8f9012345abcd'
    >>> without_random_words("with wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPL3KEY", "***")
    'with ***'
    """
    return _WORD.sub(lambda found: mask if _is_random(found[0]) else found[0], text)


def _is_user_and_password(text: str) -> bool:
    try:
        return b":" in base64.b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return False


def _is_random(word: str) -> bool:
    if len(word) == 40 and re.fullmatch(r"[A-Za-z0-9/+]{40}", word):
        # The secret half of an AWS key, which a path is seldom as long as.
        return _mixes(word, 2.8)
    if "/" in word or "\\" in word:
        return False
    return any(map(_mixes, _RUN.findall(word)))


def _mixes(run: str, longest: float = 2.4) -> bool:
    """Return True when small letters, capitals and digits alternate as in random text.

    Parts of Qwen3OmniMoeTextConfig have three or four characters; of 40 random ones 1.9, and hardly ever more than 2.4.
    """
    kinds = (any(c.islower() for c in run), any(c.isupper() for c in run), any(c.isdigit() for c in run))
    letters = sum(c.isalnum() for c in run)
    return all(kinds) and letters <= longest * len(_PART.findall(run))
