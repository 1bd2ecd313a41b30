//! What a registry asks for when it refuses a call: the header `WWW-Authenticate`.

use http::HeaderMap;
use http::header::WWW_AUTHENTICATE;

/// Bytes of a challenge that is looked at.
const MAX_CHALLENGE_BYTES: usize = 4 * 1024;

/// What a registry wants.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TokenChallenge {
    /// User and password with each call.
    Basic,
    /// A token, which another address gives.
    Bearer {
        /// Address that gives tokens.
        realm: String,
        /// Name of the registry there.
        service: Option<String>,
    },
}

impl TokenChallenge {
    /// The first challenge that brokers can meet.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let texts = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        texts.filter(|text| text.len() <= MAX_CHALLENGE_BYTES).find_map(Self::parse)
    }

    fn parse(text: &str) -> Option<Self> {
        let challenges = http_auth::parser::ChallengeParser::new(text);
        challenges.filter_map(Result::ok).find_map(|challenge| {
            let parameter = |name: &str| {
                let found = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
                found.map(|(_, value)| value.to_unescaped())
            };
            if challenge.scheme.eq_ignore_ascii_case("bearer") {
                Some(Self::Bearer { realm: parameter("realm")?, service: parameter("service") })
            } else {
                challenge.scheme.eq_ignore_ascii_case("basic").then_some(Self::Basic)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use comity_fuzz::fuzz;

    use super::*;

    #[test]
    fn challenges_of_registries() {
        let bearer = |realm: &str, service: Option<&str>| {
            Some(TokenChallenge::Bearer { realm: realm.to_owned(), service: service.map(str::to_owned) })
        };
        let text = r#"Bearer realm="https://auth.example/token",service="registry.example",scope="repository:a:pull""#;
        assert_eq!(TokenChallenge::parse(text), bearer("https://auth.example/token", Some("registry.example")));
        assert_eq!(TokenChallenge::parse(r#"bearer Realm="https://a.example/t""#), bearer("https://a.example/t", None));
        assert_eq!(TokenChallenge::parse(r#"Basic realm="Registry""#), Some(TokenChallenge::Basic));
        assert_eq!(TokenChallenge::parse(r#"Negotiate, Basic realm="x""#), Some(TokenChallenge::Basic));
        for none in ["", "Bearer", r#"Bearer service="x""#, "Negotiate"] {
            assert_eq!(TokenChallenge::parse(none), None, "{none}");
        }
    }

    #[test]
    fn made_up_challenges() {
        let valid = vec![br#"Bearer realm="https://auth.example/token",service="x""#.to_vec()];
        fuzz!("registry_challenges", valid, |bytes: &[u8]| {
            std::str::from_utf8(bytes).is_ok_and(|text| TokenChallenge::parse(text).is_some())
        });
    }
}
