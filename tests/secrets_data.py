"""Secrets that open nothing, made up anew from a seed: none stands in this repository."""

import random
import string

ALNUM = string.ascii_letters + string.digits
WORD = ALNUM + "-_"
BASE64 = ALNUM + "+/"
HEX = "0123456789abcdef"


class Maker:
    """Makes secrets of every kind; the same seed makes the same ones."""

    def __init__(self, seed=0):
        self._random = random.Random(seed)

    def chars(self, alphabet, length):
        # a digit and a letter in front: chance must not make a word of it
        return "7k" + "".join(self._random.choice(alphabet) for _ in range(length - 2))

    def pem(self, lines=12):
        body = "\n".join(self.chars(BASE64, 64) for _ in range(lines))
        return f"-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----"

    def jwt(self):
        return f"eyJ{self.chars(WORD, 33)}.eyJ{self.chars(WORD, 90)}.{self.chars(WORD, 43)}"

    def of_every_kind(self):
        """One (kind, text around it, secret) each; {} in the text is where the secret stands."""
        upper = string.ascii_uppercase + "234567"
        c = self.chars
        return [
            ("private_key", "key:\n{}\n", self.pem()),
            ("anthropic", "use {}", "sk-ant-api03-" + c(WORD, 80)),
            ("openai", "use {}.", "sk-proj-" + c(WORD, 60)),
            ("openai", "({})", "sk-" + c(ALNUM, 48)),
            ("github", "git clone {}", "ghp_" + c(ALNUM, 36)),
            ("github", "ci={}", "ghs_" + c(ALNUM, 36)),
            ("github", "{}", "github_pat_" + c(ALNUM, 22) + "_" + c(ALNUM, 59)),
            ("gitlab", "see {}", "glpat-" + c(WORD, 20)),
            ("aws_key_id", "id {} end", "AKIA" + "".join(self._random.sample(upper, 16))),
            ("aws_secret", "aws_secret_access_key = {}", c(BASE64, 40)),
            ("aws_secret", 'SecretAccessKey": "{}"', c(BASE64, 40)),
            ("google", "maps {}", "AIza" + c(WORD, 35)),
            ("google", "client {}", "GOCSPX-" + c(WORD, 28)),
            ("google", "at {}", "ya29." + c(WORD, 100)),
            ("azure", "AccountName=a;AccountKey={};Endpoint=b", c(BASE64, 86) + "=="),
            ("azure", "https://a.example/b?sv=1&sig={}", c(ALNUM, 43) + "%3D"),
            ("azure", "app {}", c(ALNUM, 3) + "8Q~" + c(WORD, 34)),
            ("slack", "bot {}", f"xoxb-{c('0123456789', 12)}-{c(ALNUM, 24)}"),
            (
                "slack",
                "https://hooks.slack.com/services/{}",
                f"T{c(upper, 8)}/B{c(upper, 8)}/{c(ALNUM, 24)}",
            ),
            ("huggingface", "login {}", "hf_" + c(ALNUM, 34)),
            ("stripe", "pay {}", "sk_live_" + c(ALNUM, 24)),
            ("npm", "//registry/:_auth {}", "npm_" + c(ALNUM, 36)),
            ("pypi", "upload {}", "pypi-AgEIcHlwaS5vcmc" + c(WORD, 80)),
            ("twilio", "sid {}", "SK" + c(HEX, 32).replace("k", "a")),
            ("sendgrid", "mail {}", f"SG.{c(WORD, 22)}.{c(WORD, 43)}"),
            ("discord", "bot {} on", f"MT{c(ALNUM, 24)}.{c(ALNUM, 6)}.{c(ALNUM, 38)}"),
            ("discord", "https://discord.com/api/webhooks/123456789/{}", c(WORD, 68)),
            ("telegram", "bot {} on", f"{self._random.randrange(10**9, 10**10)}:AA{c(ALNUM, 33)}"),
            ("vendor", "groq {}", "gsk_" + c(ALNUM, 52)),
            ("jwt", "cookie {}", self.jwt()),
            ("url_password", "postgres://ada:{}@db.example.org/x", c(ALNUM + "!-_", 14)),
            ("authorization", "Authorization: Bearer {}", c(ALNUM, 40)),
            ("authorization", "Authorization: Basic {}", c(ALNUM, 30) + "=="),
            ("assignment", "password = '{}'", c(ALNUM + "!#?", 12)),
            ("assignment", 'api_key: "{}"', c(ALNUM, 24)),
            ("assignment", "export SERVICE_TOKEN={}", c(ALNUM, 32)),
            ("assignment", "--client-secret {}", c(ALNUM, 32)),
            ("assignment", '{{"name": "DB_PASSWORD", "value": "{}"}}', c(ALNUM, 12)),
        ]
