use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use proptest::prelude::*;

use super::*;

const JOIN_TOKEN: &str = "comity-join-v1.eyJzZWNyZXQiOiJhYiJ9";

/// A PKCS #8 private key for Ed25519 (RFC 8410, section 7), in lines as OpenSSL breaks them.
fn private_key() -> String {
    let prefix = [48, 46, 2, 1, 0, 48, 5, 6, 3, 43, 101, 112, 4, 34, 4, 32];
    let bytes: Vec<u8> = prefix.into_iter().chain((0..32_u8).map(|i| i.wrapping_mul(151) ^ 0x5a)).collect();
    let body = STANDARD.encode(bytes);
    format!("-----BEGIN PRIVATE KEY-----\n{}\n{}\n-----END PRIVATE KEY-----", &body[..40], &body[40..])
}

#[test]
fn access_tokens_keep_their_prefix_alone() {
    for (prefix, form) in ACCESS_TOKENS {
        let token = match form {
            TokenForm::Long => "abcdefghijklmnop0123".to_owned(),
            TokenForm::Any(length) => "a-B_3".chars().cycle().take(length).collect(),
            TokenForm::Alphanumeric(length) => "aB3".chars().cycle().take(length).collect(),
            TokenForm::Capitals(length) => "AB7".chars().cycle().take(length).collect::<String>(),
        };
        let text = format!("displayName: token {prefix}{token}, and more");
        assert_eq!(redact_secrets(&text), format!("displayName: token {prefix}[redacted], and more"));
        assert_eq!(find_secret(&text), Some((1, "an access token")));
    }
    for harmless in [
        "ghp_short",
        "a-bakiaAKIAabcdefghijklmnop",
        "AKIA",
        "x/AKIAabCdefghijklmnop12",
        "hf_datasets_of_the_vision_group_2026",
    ] {
        assert_eq!(redact_secrets(harmless), harmless);
    }
}

#[test]
fn bearers_of_a_token_are_let_in_by_nobody() {
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let token = format!("{}.{}.{}", part(r#"{"alg":"RS256"}"#), part(r#"{"sub":"system"}"#), "aB3-".repeat(20));
    let key = STANDARD.encode(private_key());
    for (text, shown, noun) in [
        (format!("x: {token}"), "x: [redacted]", "a bearer token"),
        ("Authorization: Bearer abcd.efgh-0123_X".to_owned(), "Authorization: Bearer [redacted]", "a bearer token"),
        (
            "https://h/p?access_token=abcdefgh01234567".to_owned(),
            "https://h/p?access_token=[redacted]",
            "a bearer token",
        ),
        (format!("client: {key}, x"), "client: [redacted], x", "a private key"),
        ("https://abcdef0123456789@h/p".to_owned(), "https://[redacted]@h/p", "a URL with a password"),
    ] {
        assert_eq!(redact_secrets(&text), shown);
        assert_eq!(find_secret(&text), Some((1, noun)), "{text}");
    }
    for harmless in [
        "Bearer of the certificate",
        "bearer authentication-less",
        "eyJ.eyJ.x",
        "ssh://git@h/p",
        "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t",
    ] {
        assert_eq!((redact_secrets(harmless).as_str(), find_secret(harmless)), (harmless, None));
    }
}

#[test]
fn an_address_shows_no_user() {
    for (given, shown) in [
        ("https://token@git.example/p", "https://[redacted]@git.example/p"),
        ("ssh://git:token@git.example/p", "ssh://[redacted]@git.example/p"),
        ("git:token@git.example:p", "[redacted]@git.example:p"),
        ("https://git.example/a@b", "https://git.example/a@b"),
        ("/srv/policy", "/srv/policy"),
    ] {
        assert_eq!(redact_user(given), shown);
    }
}

#[test]
fn join_tokens_keep_their_prefix() {
    let message = format!("cannot read '{JOIN_TOKEN}': no such file, nor {JOIN_TOKEN}");
    let expected = "cannot read 'comity-join-v1.[redacted]': no such file, nor comity-join-v1.[redacted]";
    assert_eq!(redact_secrets(&message), expected);
}

#[test]
fn private_keys_are_redacted_whole_or_cut() {
    let key = private_key();
    let message = format!("cannot read '{key}': file name too long");
    assert_eq!(redact_secrets(&message), "cannot read '[redacted]': file name too long");
    let cut = redact_secrets(&message[..100]);
    assert_eq!(cut, "cannot read '[redacted]");
    // The rest of a sentence that quotes a part of the key stays.
    for (open, close) in [('\'', "'"), ('"', "\""), ('"', "\\\"")] {
        let message = format!("no lease {open}{}…{close}: see {open}{key}{close}, or the list", &key[..80]);
        let expected = format!("no lease {open}[redacted]{close}: see {open}[redacted]{close}, or the list");
        assert_eq!(redact_secrets(&message), expected);
    }
    let escaped = redact_secrets(&format!("cannot read {key:?}: file name too long"));
    assert_eq!(escaped, "cannot read \"[redacted]\": file name too long");
    let public = "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----";
    assert_eq!(redact_secrets(public), public);
}

#[test]
fn secrets_of_kubeconfigs_are_redacted() {
    let yaml = "apiVersion: v1\nusers:\n- name: a\n  user:\n    token: s3cret\n    password: \"hunter2\"\n";
    let expected = yaml.replace("s3cret", REDACTED).replace("hunter2", REDACTED);
    assert_eq!(redact_secrets(yaml), expected);
    let joined = yaml.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(!redact_secrets(&joined).contains("s3cret") && !redact_secrets(&joined).contains("hunter2"));
    let quoted = format!("{yaml:?}");
    assert!(!redact_secrets(&quoted).contains("s3cret") && !redact_secrets(&quoted).contains("hunter2"));
    let json = r#"{"users":[{"user":{"token":"s3cret","client-key-data":"Zm9v"}}]}"#;
    assert_eq!(redact_secrets(json), json.replace("s3cret", REDACTED).replace("Zm9v", REDACTED));
    for line in
        ["{password: s3cret}", "{ user: a, token: s3cret }", "aws_secret_access_key: s3cret", "`apiKey: s3cret`"]
    {
        assert_eq!(redact_secrets(line), line.replace("s3cret", REDACTED));
    }
    for sentence in ["token: must not be empty", "give a token: it is in the file", "`token`: unknown field"] {
        assert_eq!(redact_secrets(sentence), sentence);
    }
}

#[test]
fn values_in_quotes_are_redacted_to_the_closing_quote() {
    for (given, shown) in [
        (r#"passphrase: "correct horse battery""#, r#"passphrase: "[redacted]""#),
        (r#"password:"correct horse", x"#, r#"password:"[redacted]", x"#),
        (r#"token: "} a, b" is wrong"#, r#"token: "[redacted]" is wrong"#),
        ("  password: 'it''s a secret', x", "  password: '[redacted]', x"),
        (r#"{"token": "a \" b \\", "user": "c d"}"#, r#"{"token": "[redacted]", "user": "c d"}"#),
        (r#"{"token":"","user":"c d"}"#, r#"{"token":"","user":"c d"}"#),
        ("password: \"correct horse\nuser: a", "password: \"[redacted]\nuser: a"),
        ("password: \"correct\n  horse\"\nuser: a", "password: \"[redacted]\"\nuser: a"),
        (r#"cannot read "password: \"a b": not found"#, r#"cannot read "password: \"[redacted]": not found"#),
        (r#"the key "token:" is missing"#, r#"the key "token:" is missing"#),
    ] {
        assert_eq!(redact_secrets(given), shown);
    }
    let escaped = format!("{:?}", r#"password: "a \" b" is wrong"#);
    assert_eq!(redact_secrets(&escaped), r#""password: \"[redacted]\" is wrong""#);
}

#[test]
fn passwords_in_urls_are_redacted() {
    for (given, shown) in [
        ("no server at https://ada:s3cret@git.example/p.git", "no server at https://ada:[redacted]@git.example/p.git"),
        ("'http://ada:p@ss@proxy:3128' and ssh://:x@h", "'http://ada:[redacted]@proxy:3128' and ssh://:[redacted]@h"),
        ("/srv/https:/ada:s3cret@host/x", "/srv/https:/ada:[redacted]@host/x"),
    ] {
        assert_eq!(redact_secrets(given), shown);
    }
}

#[test]
fn what_is_no_secret_stays() {
    for text in [
        "https://ada@git.example/a:b@c and http://[::1]:7480/metrics?user=a:b@c",
        "cannot read 'x'; it does not begin with 'comity-join-v1.'",
        "give the token: copy the whole line again, or ask a maintainer",
        "identity key ed25519:MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE= is not the pinned one",
        "/home/Alice/Projects/Comity/deploy/agent/netstack/agent.yaml: no such file",
        "/var/lib/kubelet/pods/0c7b1f2e-9a53-4b38-8d0e-2f6b8a1c9d7e/volumes/kubernetes.io~projected",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "spiffe://comity.example/cluster/polytech-campus may not read the broker group's status",
        "the lease needs NVIDIA-H100-80GB-HBM3-MIG-1g.10gb and RTX-A6000-48GB-ECC-Passive-PCIe4x16",
        "docs/AReallyLongCamelCaseNameOfAKubernetesResourceDefinitionInAFolder/v1alpha1.yaml",
    ] {
        assert_eq!(redact_secrets(text), text);
    }
}

#[test]
fn private_keys_without_their_frame_are_redacted_in_a_path_too() {
    let body: String = private_key().lines().filter(|line| !line.starts_with("-----")).collect();
    for text in [format!("cannot read '{body}'"), format!("cannot read '/srv/comity/agent/state/{body}/agent.key'")] {
        let shown = redact_secrets(&text);
        assert!(shown.contains(REDACTED) && !shown.contains(&body[24..]), "{shown}");
    }
}

#[test]
fn the_first_line_with_a_secret_is_found() {
    let key = private_key();
    let url = "https://ada:s3cret@git.example/p.git";
    for (secret, noun) in [(JOIN_TOKEN, "a join token"), (&*key, "a private key"), (url, "a URL with a password")] {
        assert_eq!(find_secret(&format!("kind: Federation\n  x: {secret}\n")), Some((2, noun)));
    }
    assert_eq!(find_secret("token: of comity-join-v1. or https://ada@git.example\n-----BEGIN CERTIFICATE-----"), None);
}

#[test]
fn bearer_tokens_are_redacted() {
    let jwt = "eyJhbGciOiJSUzI1NiIsImtpZCI6Ilg5In0.eyJpc3MiOiJrdWJlcm5ldGVzL3NlcnZpY2VhY2NvdW50In0.dGhlIHNpZ25hdHVyZQ";
    assert_eq!(redact_secrets(&format!("unexpected argument '{jwt}' found")), "unexpected argument '[redacted]' found");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    // Of 32 bytes, one text in a thousand is mixed too little.
    #[test]
    fn random_bytes_in_base64_are_redacted(bytes in prop::collection::vec(any::<u8>(), 96..160), url: bool) {
        let encoded = if url { URL_SAFE_NO_PAD.encode(&bytes) } else { STANDARD.encode(&bytes) };
        let shown = redact_secrets(&format!("cannot read '{encoded}'"));
        prop_assert!(!shown.contains(&encoded), "{}", shown);
    }

    #[test]
    fn any_text_is_answered(text in "\\PC*|(comity-join-v1\\.|-----BEGIN |PRIVATE KEY-----|token: |\"|é|\n)*") {
        prop_assert!(redact_secrets(&text).len() <= text.len() + REDACTED.len() * (text.len() + 1));
    }
}
