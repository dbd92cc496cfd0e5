"""What tokens of real services look like, with random bodies, and the option or variable that people keep them in."""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass

HEX = "0123456789abcdef"
ALNUM = string.ascii_letters + string.digits
LOWER = string.ascii_lowercase + string.digits
UPPER = string.ascii_uppercase + string.digits
URLSAFE = ALNUM + "-_"
BASE64 = ALNUM + "+/"


@dataclass(frozen=True)
class Format:
    """A kind of token: how one is made, and where it is usually given."""

    service: str
    name: str
    make: Callable[[random.Random], str]
    #: Whether it is known by its form alone. Plain hexadecimal digits are not: commits and checksums look the same.
    has_form: bool = True


def body(alphabet: str, size: int) -> Callable[[random.Random], str]:
    return lambda rng: "".join(rng.choices(alphabet, k=size))


def after(prefix: str, alphabet: str, size: int, suffix: str = "") -> Callable[[random.Random], str]:
    return lambda rng: prefix + body(alphabet, size)(rng) + suffix


def joined(*parts: str | Callable[[random.Random], str]) -> Callable[[random.Random], str]:
    return lambda rng: "".join(part if isinstance(part, str) else part(rng) for part in parts)


def encoded(data: Mapping[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(data).encode()).decode().rstrip("=")


def _jwt(rng: random.Random) -> str:
    claims = {"sub": rng.randrange(10**9), "exp": rng.randrange(10**9)}
    return f"{encoded({'alg': 'HS256', 'typ': 'JWT'})}.{encoded(claims)}.{body(URLSAFE, 43)(rng)}"


def _neptune(rng: random.Random) -> str:
    return encoded({"api_address": "https://app.neptune.ai", "api_key": body(HEX, 32)(rng)}) + "=="


def _pem(kind: str, lines: int = 6) -> Callable[[random.Random], str]:
    def make(rng: random.Random) -> str:
        text = "\n".join(body(BASE64, 64)(rng) for _ in range(lines))
        return f"-----BEGIN {kind}-----\n{text}\n-----END {kind}-----"

    return make


def _basic(rng: random.Random) -> str:
    return "Basic " + base64.b64encode(f"me:{body(ALNUM, 12)(rng)}".encode()).decode()


def _uuid(rng: random.Random) -> str:
    return "-".join(body(HEX, size)(rng) for size in (8, 4, 4, 4, 12))


FORMATS = [
    Format("Hugging Face", "hf_token", after("hf_", ALNUM, 34)),
    Format("Hugging Face organization", "hub_token", after("api_org_", ALNUM, 34)),
    Format("OpenAI", "openai_api_key", after("sk-", ALNUM, 48)),
    Format("OpenAI project", "api_key", after("sk-proj-", URLSAFE, 120)),
    Format("OpenAI service account", "OPENAI_API_KEY", after("sk-svcacct-", URLSAFE, 80)),
    Format("Anthropic", "anthropic_api_key", after("sk-ant-api03-", URLSAFE, 93, "AA")),
    Format("OpenRouter", "openrouter_key", after("sk-or-v1-", HEX, 64)),
    Format("AWS key id", "aws_access_key", after("AKIA", UPPER, 16)),
    Format("AWS temporary key id", "aws_access_key", after("ASIA", UPPER, 16)),
    Format("AWS secret", "aws_secret_access_key", body(BASE64, 40), has_form=False),
    Format("AWS Bedrock", "aws_bearer_token_bedrock", after("ABSK", ALNUM, 120)),
    Format("Google API key", "google_api_key", after("AIza", URLSAFE, 35)),
    Format("Google OAuth", "access_token", after("ya29.", URLSAFE, 120)),
    Format("Google OAuth client", "client_secret", after("GOCSPX-", URLSAFE, 28)),
    Format("Google service account", "private_key", _pem("PRIVATE KEY")),
    Format("Azure storage", "AccountKey", after("", BASE64, 86, "=="), has_form=False),
    Format("Azure SAS", "sig", lambda rng: body(ALNUM, 43)(rng) + "%3D", has_form=False),
    Format("Azure AD", "client_secret", joined(body(ALNUM, 3), "8Q~", body(ALNUM, 34))),
    Format("GitHub classic", "github_token", after("ghp_", ALNUM, 36)),
    Format("GitHub OAuth", "gh_token", after("gho_", ALNUM, 36)),
    Format("GitHub app", "app_token", after("ghs_", ALNUM, 36)),
    Format("GitHub user to server", "user_auth", after("ghu_", ALNUM, 36)),
    Format("GitHub fine-grained", "github_pat", joined("github_pat_", body(ALNUM, 22), "_", body(ALNUM, 59))),
    Format("GitLab", "gitlab_token", after("glpat-", URLSAFE, 20)),
    Format("GitLab deploy", "deploy_token", after("gldt-", URLSAFE, 20)),
    Format("Slack bot", "slack_token", joined("xoxb-", body(string.digits, 12), "-", body(ALNUM, 24))),
    Format("Slack app", "slack_app_token", joined("xapp-1-", body(UPPER, 11), "-", body(HEX, 64))),
    Format(
        "Slack webhook",
        "slack_webhook",
        joined("https://hooks.slack.com/services/T", body(UPPER, 8), "/B", body(UPPER, 8), "/", body(ALNUM, 24)),
    ),
    Format(
        "Discord webhook",
        "discord_webhook_url",
        joined("https://discord.com/api/webhooks/", body(string.digits, 18), "/", body(URLSAFE, 68)),
    ),
    Format("Discord bot", "bot_token", joined("M", body(ALNUM, 23), ".", body(ALNUM, 6), ".", body(URLSAFE, 38))),
    Format(
        "Teams webhook",
        "teams_webhook",
        joined("https://acme.webhook.office.com/webhookb2/", _uuid, "@", _uuid, "/IncomingWebhook/", body(HEX, 32)),
    ),
    Format("Telegram", "telegram_token", joined("1", body(string.digits, 9), ":AA", body(URLSAFE, 33))),
    Format("Stripe", "stripe_key", after("sk_live_", ALNUM, 24)),
    Format("Stripe webhook", "webhook_secret", after("whsec_", ALNUM, 32)),
    Format("Twilio", "twilio_api_key", after("SK", HEX, 32)),
    Format("SendGrid", "sendgrid_api_key", joined("SG.", body(URLSAFE, 22), ".", body(URLSAFE, 43))),
    Format("Mailgun", "mailgun_key", after("key-", HEX, 32)),
    Format("Mailchimp", "mailchimp_api_key", after("", HEX, 32, "-us21")),
    Format("npm", "npm_token", after("npm_", ALNUM, 36)),
    Format("PyPI", "pypi_token", after("pypi-AgEIcHlwaS5vcmc", URLSAFE, 150)),
    Format("Docker Hub", "docker_pass", after("dckr_pat_", URLSAFE, 27)),
    Format("DigitalOcean", "do_token", after("dop_v1_", HEX, 64)),
    Format("Heroku", "heroku_api_key", _uuid, has_form=False),
    Format("Databricks", "databricks_token", after("dapi", HEX, 32)),
    Format("W&B", "wandb_key", body(HEX, 40), has_form=False),
    Format("W&B new", "WANDB_API_KEY", after("wandb_v1_", ALNUM + "_", 77)),
    Format("Comet", "comet_api_key", body(ALNUM, 25), has_form=False),
    Format("Neptune", "neptune_api_token", _neptune),
    Format("ClearML", "clearml_secret_key", body(ALNUM, 50), has_form=False),
    Format("Kaggle", "kaggle_key", body(HEX, 32), has_form=False),
    Format("Kaggle new", "kaggle_api_token", after("KGAT_", HEX, 32)),
    Format("Replicate", "replicate_api_token", after("r8_", ALNUM, 37)),
    Format("Cohere", "cohere_api_key", body(ALNUM, 40), has_form=False),
    Format("Mistral", "mistral_api_key", body(ALNUM, 32), has_form=False),
    Format("Groq", "groq_api_key", after("gsk_", ALNUM, 52)),
    Format("xAI", "xai_api_key", after("xai-", ALNUM, 80)),
    Format("Perplexity", "pplx_api_key", after("pplx-", ALNUM, 48)),
    Format("NVIDIA", "ngc_api_key", after("nvapi-", URLSAFE, 64)),
    Format("Together", "together_api_key", body(HEX, 64), has_form=False),
    Format("Together new", "together_key", after("tgp_v1_", URLSAFE, 43)),
    Format("Fireworks", "fireworks_key", after("fw_", ALNUM, 24)),
    Format("ElevenLabs", "elevenlabs_api_key", after("sk_", HEX, 48)),
    Format("Vault", "vault_token", after("hvs.", URLSAFE, 90)),
    Format("JWT", "jwt", _jwt),
    Format("Basic authorization", "authorization", _basic),
    Format("Bearer authorization", "auth_header", after("Bearer ", URLSAFE, 40)),
    Format("RSA key", "ssh_key", _pem("RSA PRIVATE KEY")),
    Format("OpenSSH key", "deploy_key", _pem("OPENSSH PRIVATE KEY")),
    Format("age", "age_key", after("AGE-SECRET-KEY-1", UPPER, 58)),
    Format("Sentry", "sentry_dsn", joined("https://", body(HEX, 32), "@o450.ingest.sentry.io/450")),
    Format("Sentry token", "sentry_auth_token", after("sntrys_", BASE64, 90)),
    Format("New Relic", "new_relic_key", after("NRAK-", UPPER, 27)),
    Format("New Relic license", "license_key", after("", HEX, 36, "NRAL")),
    Format("Datadog", "dd_api_key", body(HEX, 32), has_form=False),
    Format("Grafana", "grafana_token", joined("glsa_", body(ALNUM, 32), "_", body(HEX, 8))),
    Format("Linear", "linear_key", after("lin_api_", ALNUM, 40)),
    Format("Notion", "notion_token", after("ntn_", ALNUM, 46)),
    Format("Notion old", "notion_secret", after("secret_", ALNUM, 43)),
    Format("Airtable", "airtable_token", joined("pat", body(ALNUM, 14), ".", body(HEX, 64))),
    Format("Atlassian", "jira_token", after("ATATT3xFfGF0", URLSAFE, 170)),
    Format("Cloudflare", "cloudflare_api_token", body(URLSAFE, 40), has_form=False),
    Format("Fastly", "fastly_key", body(URLSAFE, 32), has_form=False),
    Format("Supabase", "supabase_access_token", after("sbp_", HEX, 40)),
    Format("Supabase secret", "supabase_key", after("sb_secret_", URLSAFE, 31)),
    Format("Pinecone", "pinecone_api_key", joined("pcsk_", body(ALNUM, 6), "_", body(ALNUM, 60))),
    Format("LangSmith", "langsmith_api_key", joined("lsv2_pt_", body(HEX, 32), "_", body(HEX, 10))),
    Format("Shopify", "shop_token", after("shpat_", HEX, 32)),
    Format("Terraform", "tfe_token", joined(body(ALNUM, 14), ".atlasv1.", body(URLSAFE, 67))),
    Format("Postman", "postman_key", joined("PMAK-", body(HEX, 24), "-", body(HEX, 34))),
]
