//! Takes secrets out of messages that quote what the caller typed: somebody pastes a token, a key or a kubeconfig in the
//! place of a file name, and the error goes to a terminal, a log of CI or a ticket.

use std::ops::Range;

/// What a join token begins with.
pub const JOIN_TOKEN_PREFIX: &str = "comity-join-v1.";
/// Stands for a secret.
const REDACTED: &str = "[redacted]";
/// Random text of at least this many characters is taken for a secret: 32 bytes in base64 have 43.
const SHORTEST_RANDOM: usize = 40;
/// Marks of public keys, whose values look like secrets.
const PUBLIC_MARKS: [&str; 3] = ["ed25519:", "SHA256:", "sha256:"];
/// Keys with secrets, in kubeconfigs and in the files of tools that people use beside them.
const SECRET_KEYS: [&str; 20] = [
    "accessKey",
    "access_key",
    "apiKey",
    "api_key",
    "aws_secret_access_key",
    "client-key-data",
    "client-secret",
    "clientSecret",
    "client_secret",
    "id-token",
    "passphrase",
    "password",
    "privateKey",
    "private_key",
    "refresh-token",
    "secretAccessKey",
    "secretKey",
    "secret_access_key",
    "secret_key",
    "token",
];
/// What stands before a key.
const BEFORE_KEYS: [&str; 13] = ["\n", "\\n", "  ", "\"", "\\\"", "- ", ": ", "[redacted] ", "{", "{ ", ", ", "`", "'"];
/// What values of HTTP headers, and of parameters in URLs, begin with if they let their reader in.
const BEARERS: [&str; 7] =
    ["Bearer ", "bearer ", "access_token=", "private_token=", "client_secret=", "api_key=", "apikey="];
/// How private keys begin in base64: an OpenSSH key without its first line, and PEM that was encoded again, as in
/// `client-key-data`. The fourth to seventh begin with an algorithm.
const ENCODED_KEYS: [&str; 6] = [
    "b3BlbnNzaC1rZXktdjEA",
    "LS0tLS1CRUdJTiBQUklW",
    "LS0tLS1CRUdJTiBSU0Eg",
    "LS0tLS1CRUdJTiBFQyBQ",
    "LS0tLS1CRUdJTiBPUEVO",
    "LS0tLS1CRUdJTiBFTkNS",
];
/// How the header and the claims of a JSON Web Token (RFC 7519) begin: `{"` in base64url.
const JWT_PART: &str = "eyJ";
/// Characters that each of its three parts has at least.
const SHORTEST_JWT_PART: usize = 16;
const PEM_BEGIN: &str = "-----BEGIN ";
const PEM_END: &str = "-----END ";

/// How access tokens of Git servers, registries, model hubs and clouds begin, and what follows.
const ACCESS_TOKENS: [(&str, TokenForm); 18] = [
    ("ghp_", TokenForm::Long),
    ("gho_", TokenForm::Long),
    ("ghu_", TokenForm::Long),
    ("ghs_", TokenForm::Long),
    ("ghr_", TokenForm::Long),
    ("github_pat_", TokenForm::Long),
    ("glpat-", TokenForm::Long),
    ("dckr_pat_", TokenForm::Long),
    ("dop_v1_", TokenForm::Long),
    ("sk_live_", TokenForm::Long),
    ("sk-ant-", TokenForm::Long),
    ("sk-proj-", TokenForm::Long),
    ("AGE-SECRET-KEY-", TokenForm::Long),
    ("hf_", TokenForm::Alphanumeric(34)),
    ("npm_", TokenForm::Alphanumeric(36)),
    ("AIza", TokenForm::Any(35)),
    ("AKIA", TokenForm::Capitals(16)),
    ("ASIA", TokenForm::Capitals(16)),
];
/// Characters of [`TokenForm::Long`].
const SHORTEST_ACCESS_TOKEN: usize = 16;

/// What follows the prefix of an access token: characters of base64url. The shorter the prefix, the more exact the form has
/// to be, since names may begin with it.
#[derive(Clone, Copy)]
enum TokenForm {
    /// At least 16.
    Long,
    /// Exactly so many.
    Any(usize),
    /// Exactly so many letters and digits.
    Alphanumeric(usize),
    /// Exactly so many capitals and digits.
    Capitals(usize),
}

impl TokenForm {
    fn fits(self, text: &str) -> bool {
        match self {
            Self::Long => text.len() >= SHORTEST_ACCESS_TOKEN,
            Self::Any(length) => text.len() == length,
            Self::Alphanumeric(length) => text.len() == length && text.bytes().all(|it| it.is_ascii_alphanumeric()),
            Self::Capitals(length) => {
                text.len() == length && text.bytes().all(|it| it.is_ascii_uppercase() || it.is_ascii_digit())
            }
        }
    }
}

/// The text with `[redacted]` in place of what looks like a secret: join tokens, private keys in PEM or its base64, secrets
/// of kubeconfigs, passwords and users in URLs, bearer tokens, access tokens of well-known services, and random text of 40
/// characters or more, such as WireGuard keys. Public keys that are written as such (`ed25519:…`) and hexadecimal digests stay.
#[must_use]
pub fn redact_secrets(text: &str) -> String {
    let text = redact_join_tokens(text);
    let text = redact_private_keys(&text);
    let text = redact_kubeconfig_values(&text);
    let text = redact_encoded_keys(&text);
    let text = redact_url_passwords(&text);
    let text = redact_access_tokens(&text);
    let text = redact_web_tokens(&text);
    let text = redact_bearers(&text);
    redact_random(&text)
}

/// An address without its user: some servers accept a token as the user.
#[must_use]
pub fn redact_user(address: &str) -> String {
    let begin = address.find("://").map_or(0, |scheme| scheme + "://".len());
    let (scheme, rest) = address.split_at(begin);
    let end = rest.find('/').unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}[redacted]{}", &rest[at..]),
        None => address.to_owned(),
    }
}

/// The first line, from 1, with a text that cannot be anything but a secret, and its noun: a join token, a private key,
/// a URL's password, an access token or a bearer token.
#[must_use]
pub fn find_secret(text: &str) -> Option<(usize, &'static str)> {
    text.lines().enumerate().find_map(|(index, line)| {
        let noun = if redact_join_tokens(line) != line {
            "a join token"
        } else if has_private_key(line) || redact_encoded_keys(line) != line {
            "a private key"
        } else if redact_url_passwords(line) != line {
            "a URL with a password"
        } else if redact_access_tokens(line) != line {
            "an access token"
        } else if redact_web_tokens(line) != line || redact_bearers(line) != line {
            "a bearer token"
        } else {
            return None;
        };
        Some((index + 1, noun))
    })
}

/// Keeps the prefix of a join token, which tells the reader what was there.
fn redact_join_tokens(text: &str) -> String {
    let mut parts = text.split(JOIN_TOKEN_PREFIX);
    let mut redacted = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(is_base64url);
        redacted.push_str(JOIN_TOKEN_PREFIX);
        if rest.len() < part.len() {
            redacted.push_str(REDACTED);
        }
        redacted.push_str(rest);
    }
    redacted
}

/// Whether a text has a private key in PEM, whole or cut.
#[must_use]
pub fn has_private_key(text: &str) -> bool {
    redact_private_keys(text) != text
}

/// From the first line of a private key to its last. Of a key that was cut, to the next quotation mark, which no key
/// contains, or to the end of the text.
fn redact_private_keys(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(begin) = rest.find(PEM_BEGIN) {
        let (before, block) = rest.split_at(begin);
        out.push_str(before);
        let label = block[PEM_BEGIN.len()..].split("-----").next().unwrap_or_default();
        if !label.ends_with("PRIVATE KEY") {
            out.push_str(PEM_BEGIN);
            rest = &block[PEM_BEGIN.len()..];
            continue;
        }
        out.push_str(REDACTED);
        let last = format!("{PEM_END}{label}-----");
        let next = block[PEM_BEGIN.len()..].find(PEM_BEGIN).map_or(block.len(), |next| PEM_BEGIN.len() + next);
        rest = match (block[..next].find(&last), block.find(['"', '\''])) {
            (Some(end), _) => &block[end + last.len()..],
            // The mark may be escaped.
            (None, Some(mark)) => &block[block[..mark].trim_end_matches('\\').len()..],
            (None, None) => "",
        };
    }
    out.push_str(rest);
    out
}

/// The values of keys such as `token:` in YAML or JSON: the key begins a line, is indented, is in quotes or follows
/// another key, as in YAML whose lines were joined. A sentence such as "give a token: …" stays.
fn redact_kubeconfig_values(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(first) = rest.chars().next() {
        let begins = out.is_empty() || BEFORE_KEYS.iter().any(|mark| out.ends_with(mark));
        let value = if begins { SECRET_KEYS.iter().find_map(|key| value_of(key, &out, rest)) } else { None };
        // A message may begin with the name of a field.
        let value = value.filter(|value| !(out.is_empty() && rest[value.end..].starts_with(' ')));
        let end = match value {
            Some(value) => {
                out.extend([&rest[..value.start], REDACTED]);
                value.end
            }
            None => {
                out.push(first);
                first.len_utf8()
            }
        };
        rest = &rest[end..];
    }
    out
}

/// Where the value of `key` is in a text that begins with the key and follows `before`.
fn value_of(key: &str, before: &str, text: &str) -> Option<Range<usize>> {
    let quotes = ['\\', '"', '\''];
    let after_key = text.strip_prefix(key)?;
    let value = after_key.trim_start_matches(quotes).strip_prefix(':')?.trim_start();
    // In `"token:" is missing` the second quote closes the first.
    let quote = value.get(..=value.len() - value.trim_start_matches('\\').len());
    let closes = after_key.len() == value.len() + 1 && quote.is_some_and(|quote| before.ends_with(quote));
    let inner = if closes { None } else { quoted(value) };
    if let Some(inner) = inner.filter(|inner| !inner.is_empty()) {
        let start = text.len() - value.len();
        return Some(start + inner.start..start + inner.end);
    }
    let value = value.trim_start_matches(quotes);
    let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '\\' | ',' | '}');
    let start = text.len() - value.len();
    let end = start + value.find(ends).unwrap_or(value.len());
    (start < end).then_some(start..end)
}

/// What is in the quotes that a text begins with; without a closing quote, the rest of the line. In a text that was
/// escaped, backslashes stand before both quotes, and more of them before a quote in between. YAML doubles a single quote.
fn quoted(text: &str) -> Option<Range<usize>> {
    let body = text.trim_start_matches('\\');
    let escapes = text.len() - body.len();
    let mark = body.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let (start, body) = (escapes + 1, &body[1..]);
    let mut backslashes = 0_usize;
    let mut chars = body.char_indices().peekable();
    while let Some((index, c)) = chars.next() {
        if c == '\\' {
            backslashes += 1;
            continue;
        }
        let closes = c == mark
            && match mark {
                '"' => backslashes < escapes || backslashes % (2 * (escapes + 1)) == escapes,
                _ => chars.next_if(|(_, next)| *next == mark).is_none(),
            };
        if closes {
            return Some(start..start + index - backslashes.min(escapes));
        }
        backslashes = 0;
    }
    Some(start..start + body.find(['\n', '\r']).unwrap_or(body.len()))
}

/// Private keys that begin as nothing else does in base64, up to their end.
fn redact_encoded_keys(text: &str) -> String {
    let mut out = text.to_owned();
    for begin in ENCODED_KEYS {
        replace_after(&mut out, begin, 0, |text| text.find(|c| !is_base64(c)).unwrap_or(text.len()));
    }
    out
}

/// JSON Web Tokens, such as those of Kubernetes' ServiceAccounts.
fn redact_web_tokens(text: &str) -> String {
    let mut out = text.to_owned();
    replace_after(&mut out, JWT_PART, 0, |text| {
        let end = text.find(|c| !is_base64url(c) && c != '.').unwrap_or(text.len());
        let mut parts = text[..end].splitn(3, '.');
        let mut is_long =
            |begin: &str| parts.next().is_some_and(|part| part.starts_with(begin) && part.len() >= SHORTEST_JWT_PART);
        if is_long(JWT_PART) && is_long(JWT_PART) && is_long("") { end } else { 0 }
    });
    out
}

/// Values of `Authorization: Bearer` and of parameters of URLs.
fn redact_bearers(text: &str) -> String {
    let mut out = text.to_owned();
    for begin in BEARERS {
        replace_after(&mut out, begin, begin.len(), |text| {
            let end = text.find(|c| !is_base64(c) && !matches!(c, '-' | '_' | '.' | '~')).unwrap_or(text.len());
            // A sentence may go on with a word.
            let is_word = text[..end].bytes().all(|it| it.is_ascii_lowercase() || matches!(it, b'-' | b'.'));
            if end >= SHORTEST_ACCESS_TOKEN && !is_word { end } else { 0 }
        });
    }
    out
}

/// Replaces `length` bytes of what begins `skip` bytes after each place where `begin` is.
fn replace_after(text: &mut String, begin: &str, skip: usize, length: impl Fn(&str) -> usize) {
    let mut from = 0;
    while let Some(found) = text[from..].find(begin) {
        let start = from + found + skip;
        let end = start + length(&text[start..]);
        if end > start {
            text.replace_range(start..end, REDACTED);
            from = start + REDACTED.len();
        } else {
            from += found + begin.len();
        }
    }
}

/// Passwords in the authority of URLs (RFC 3986, section 3.2.1): `scheme://user:[redacted]@host`. A password may contain
/// `@`: the last one before the path ends it. A URL that was taken for a path has lost one of its slashes. Over HTTP
/// servers take a token for the user.
fn redact_url_passwords(text: &str) -> String {
    let mut parts = text.split(":/");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str(":/");
        let part = match part.strip_prefix('/') {
            Some(rest) => {
                out.push('/');
                rest
            }
            None => part,
        };
        let end = part.find(|c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#' | '"' | '\'' | '`'));
        let authority = &part[..end.unwrap_or(part.len())];
        let scheme = out.trim_end_matches('/');
        let is_http = scheme.ends_with("http:") || scheme.ends_with("https:");
        let password = authority.rfind('@').and_then(|at| {
            let user = &authority[..at];
            let begin = user.find(':').map(|colon| colon + 1);
            Some((begin.or((is_http && is_token(user)).then_some(0))?, at))
        });
        match password {
            Some((from, at)) if from < at => out.extend([&part[..from], REDACTED, &part[at..]]),
            _ => out.push_str(part),
        }
    }
    out
}

/// Access tokens that begin as nothing else does. The prefix stays.
fn redact_access_tokens(text: &str) -> String {
    let mut out = text.to_owned();
    for (prefix, form) in ACCESS_TOKENS {
        let mut from = 0;
        while let Some(found) = out[from..].find(prefix) {
            let start = from + found;
            from = start + prefix.len();
            let after = &out[from..];
            let length = after.find(|c: char| !is_base64url(c)).unwrap_or(after.len());
            if form.fits(&after[..length]) && !out[..start].ends_with(is_base64url) {
                out.replace_range(from..from + length, REDACTED);
                from += REDACTED.len();
            }
        }
    }
    out
}

/// Words of base64 that anywhere mix letters of both cases and digits as random bytes do. A path may lead to such a word;
/// a hexadecimal digest has letters of one case.
fn redact_random(text: &str) -> String {
    let is_word = |c: char| is_base64url(c) || matches!(c, '+' | '/' | '=' | '.');
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let word_end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(word_end);
        let public = PUBLIC_MARKS.iter().any(|mark| out.ends_with(mark));
        out.push_str(if !public && is_random(word) { REDACTED } else { word });
        let gap = after.find(is_word).unwrap_or(after.len());
        out.push_str(&after[..gap]);
        rest = &after[gap..];
    }
    out
}

fn is_random(word: &str) -> bool {
    word.as_bytes().windows(SHORTEST_RANDOM).any(is_mixed)
}

fn is_mixed(bytes: &[u8]) -> bool {
    #[derive(PartialEq)]
    enum Class {
        Upper,
        Lower,
        Digit,
        Other,
    }
    let class = |byte: u8| match byte {
        b'A'..=b'Z' => Class::Upper,
        b'a'..=b'z' => Class::Lower,
        b'0'..=b'9' => Class::Digit,
        _ => Class::Other,
    };
    let count = |wanted: Class| bytes.iter().filter(|byte| class(**byte) == wanted).count();
    // Neighbours in random base64 differ in class 64 times in 100, in words with capitals about 25 times.
    let changes = bytes.windows(2).filter(|pair| class(pair[0]) != class(pair[1])).count();
    let mixed = changes * 100 >= (bytes.len() - 1) * 42;
    mixed && count(Class::Upper) >= 3 && count(Class::Lower) >= 3 && count(Class::Digit) >= 1
}

/// Whether a user is rather a token: long, and of letters and digits.
fn is_token(user: &str) -> bool {
    user.len() >= SHORTEST_ACCESS_TOKEN && user.chars().all(is_base64url) && user.bytes().any(|it| it.is_ascii_digit())
}

fn is_base64(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=')
}

fn is_base64url(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_')
}

#[cfg(test)]
mod tests;
