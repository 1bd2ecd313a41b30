//! Credentials for registries, in the form of Docker's config.json.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_runtime::Secret;
use comity_runtime::atomic_file;
use comity_runtime::private_files;
use comity_runtime::secret::SecretString;
use serde::Deserialize;

use crate::policy_source::address_text::HTTPS_PORT;
use crate::policy_source::oci::address::ArtifactAddress;
use crate::policy_source::pull_error::PullError;

/// Bytes of the file.
const MAX_CONFIG_BYTES: u64 = 256 << 10;
/// What to do about missing or wrong credentials.
pub(super) const LOGIN_REMEDY: &str = "give each broker a Docker config.json with `auths` for the registry, with \
    --policy-registry-config; programs of `credsStore` and `credHelpers` do not run";

/// What counts of the file.
#[derive(Deserialize)]
struct RegistryConfig {
    #[serde(default)]
    auths: BTreeMap<String, RegistryEntry>,
}

#[derive(Deserialize)]
struct RegistryEntry {
    auth: Option<SecretString>,
    username: Option<SecretString>,
    password: Option<SecretString>,
}

impl RegistryEntry {
    /// `USER:PASSWORD` in base64, as `Basic` has it.
    fn basic(self) -> Option<SecretString> {
        if let Some(auth) = self.auth.filter(|auth| !auth.expose().trim().is_empty()) {
            let decoded = Secret::new(STANDARD.decode(auth.expose().trim()).ok()?);
            return decoded.expose().contains(&b':').then(|| Secret::new(STANDARD.encode(decoded.expose())));
        }
        let (user, password) = (self.username?, self.password?);
        let pair = Secret::new(format!("{}:{}", user.expose(), password.expose()));
        Some(Secret::new(STANDARD.encode(pair.expose())))
    }
}

/// The value of the header `Authorization` for the registry of an artifact; `None` if the file has none for it. The entry
/// with the longest matching path counts, so that each repository can have its own.
pub(super) fn registry_login(file: &Path, artifact: &ArtifactAddress) -> Result<Option<SecretString>, PullError> {
    let failed = |error: &dyn std::fmt::Display| {
        PullError::saying("cannot read the registry's credentials", error, LOGIN_REMEDY)
    };
    private_files::check(file).map_err(|error| failed(&error))?;
    let bytes = Secret::new(atomic_file::read_bounded(file, MAX_CONFIG_BYTES).map_err(|error| failed(&error))?);
    let config = parse(bytes.expose()).map_err(|why| failed(&why))?;
    Ok(login_in(config, artifact))
}

/// Errors of the parser could show a secret.
fn parse(bytes: &[u8]) -> Result<RegistryConfig, String> {
    serde_json::from_slice(bytes)
        .map_err(|error| format!("it is no config.json of Docker (line {}, column {})", error.line(), error.column()))
}

fn login_in(config: RegistryConfig, artifact: &ArtifactAddress) -> Option<SecretString> {
    let matching = config.auths.into_iter().filter_map(|(key, entry)| Some((matched_path(&key, artifact)?, entry)));
    let (_, entry) = matching.max_by_key(|(length, _)| *length)?;
    entry.basic().map(|basic| Secret::new(format!("Basic {}", basic.expose())))
}

/// Bytes of the path that a key of `auths` names, if it is for this artifact. Docker's keys are hosts, and sometimes URLs
/// of the API; those of other tools may have a path within the registry.
fn matched_path(key: &str, artifact: &ArtifactAddress) -> Option<usize> {
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let (authority, path) = key.split_once('/').unwrap_or((key, ""));
    let authority: http::uri::Authority = authority.parse().ok()?;
    let port = authority.port_u16().unwrap_or(HTTPS_PORT);
    if !authority.host().eq_ignore_ascii_case(&artifact.host) || port != artifact.port {
        return None;
    }
    let path = path.trim_end_matches('/');
    if path.is_empty() || path == "v1" || path == "v2" {
        return Some(0);
    }
    let rest = artifact.name.strip_prefix(path)?;
    (rest.is_empty() || rest.starts_with('/')).then_some(path.len())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_fuzz::fuzz;

    use super::*;

    fn login(config: &str, address: &str) -> Option<String> {
        let artifact = ArtifactAddress::parse(address).unwrap().unwrap();
        login_in(parse(config.as_bytes()).unwrap(), &artifact).map(|login| login.expose().clone())
    }

    #[test]
    fn an_entry_is_for_its_host_and_path_only() {
        let of = |text: &str| STANDARD.encode(text);
        let config = format!(
            r#"{{"credsStore": "desktop", "auths": {{
                "registry.example": {{"auth": "{}"}}, "registry.example/org/policy": {{"auth": "{}"}},
                "https://hub.example:5000/v2/": {{"username": "bot", "password": "p:q"}},
                "empty.example": {{}}, "token.example": {{"identitytoken": "x"}} }} }}"#,
            of("a:one"),
            of("a:two")
        );
        let login = |address: &str| login(&config, address);
        assert_eq!(login("oci://registry.example/org/policy:x"), Some(format!("Basic {}", of("a:two"))));
        assert_eq!(login("oci://registry.example/org/policy/a:x"), Some(format!("Basic {}", of("a:two"))));
        assert_eq!(login("oci://registry.example/org/policy2:x"), Some(format!("Basic {}", of("a:one"))));
        assert_eq!(login("oci://REGISTRY.example/org:x"), Some(format!("Basic {}", of("a:one"))));
        assert_eq!(login("oci://hub.example:5000/x:x"), Some(format!("Basic {}", of("bot:p:q"))));
        for none in
            ["registry.example:5000", "hub.example", "registry.example.evil.example", "empty.example", "token.example"]
        {
            assert_eq!(login(&format!("oci://{none}/org/policy:x")), None, "{none}");
        }
    }

    #[test]
    fn errors_show_no_content() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("config.json");
        let artifact = ArtifactAddress::parse("oci://registry.example/policy:x").unwrap().unwrap();
        atomic_file::write(
            &file,
            br#"{"auths": {"registry.example": {"auth": "hunter2", "auth": 7}}}"#,
            atomic_file::PRIVATE,
        )
        .unwrap();
        let error = registry_login(&file, &artifact).unwrap_err();
        assert!(error.reason.contains("line 1") && !error.reason.contains("hunter2"), "{error}");
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = registry_login(&file, &artifact).unwrap_err();
        assert!(error.reason.contains("config.json") && !error.reason.contains("hunter2"), "{error}");
    }

    #[test]
    fn made_up_configurations() {
        let valid = vec![br#"{"auths": {"registry.example": {"auth": "YTpi"}}}"#.to_vec()];
        let artifact = ArtifactAddress::parse("oci://registry.example/policy:x").unwrap().unwrap();
        fuzz!("registry_config", valid, move |bytes: &[u8]| {
            parse(bytes).is_ok_and(|config| login_in(config, &artifact).is_some())
        });
    }
}
