//! Credentials for servers: one URL a line, `https://USER:TOKEN@HOST`, as `git credential-store` keeps them.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_runtime::Secret;
use comity_runtime::atomic_file;
use comity_runtime::private_files;
use comity_runtime::secret::SecretString;

use crate::policy_source::pull_error::PullError;

/// Bytes of the file.
const MAX_CREDENTIALS_BYTES: u64 = 64 << 10;
const CREDENTIALS_REMEDY: &str = "give --policy-credentials a private file with lines https://USER:TOKEN@HOST";

/// The value of the header `Authorization` for a server; `None` if the file has none for it. A token goes to the host
/// that its line names, and to no other: whoever sets the source must not get it.
pub(super) fn authorization(file: &Path, host: &str, port: u16) -> Result<Option<SecretString>, PullError> {
    let failed = |error: &dyn std::fmt::Display| {
        PullError::saying("cannot read --policy-credentials", error, CREDENTIALS_REMEDY)
    };
    private_files::check(file).map_err(|error| failed(&error))?;
    let bytes = atomic_file::read_bounded(file, MAX_CREDENTIALS_BYTES).map_err(|error| failed(&error))?;
    let text = Secret::new(String::from_utf8(bytes).map_err(|_| failed(&"it is not text"))?);
    let lines = || text.expose().lines().map(str::trim);
    let found = lines().find_map(|line| credentials_for(line, host, port));
    if found.is_none()
        && let Some(number) =
            lines().position(|line| !line.is_empty() && !line.starts_with('#') && read(line).is_none())
    {
        let reason = format!("line {} of --policy-credentials is no https://USER:TOKEN@HOST", number + 1);
        return Err(PullError::new(reason, CREDENTIALS_REMEDY));
    }
    Ok(found.map(|user| Secret::new(format!("Basic {}", STANDARD.encode(user.expose())))))
}

/// `USER:TOKEN` of a line, if it is for this server.
fn credentials_for(line: &str, host: &str, port: u16) -> Option<SecretString> {
    let (authority, credentials) = read(line)?;
    let is_this = authority.host().eq_ignore_ascii_case(host) && authority.port_u16().unwrap_or(443) == port;
    is_this.then_some(credentials)
}

/// The server of a line, and `USER:TOKEN`.
fn read(line: &str) -> Option<(http::uri::Authority, SecretString)> {
    let (user, server) = line.strip_prefix("https://")?.rsplit_once('@')?;
    let authority = server.split('/').next()?.parse().ok()?;
    let (name, token) = user.split_once(':')?;
    let decode = |text: &str| percent_decode(text).map(Secret::new);
    let (name, token) = (decode(name)?, decode(token)?);
    Some((authority, Secret::new(format!("{}:{}", name.expose(), token.expose()))))
}

/// Git keeps characters such as `@` as `%40`.
fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        if *first == b'%' {
            let (digits, tail) = tail.split_at_checked(2)?;
            bytes.push(hex::decode(digits).ok()?.first().copied()?);
            rest = tail;
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_fuzz::fuzz;

    use super::*;

    #[test]
    fn a_token_goes_to_the_host_of_its_line_only() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("credentials");
        let lines = b"# a comment\nhttps://other:x@other.example\nhttps://bot:p%40ss@git.example:8443/policy\n";
        atomic_file::write(&file, lines, atomic_file::PRIVATE).unwrap();
        let of = |host: &str, port| authorization(&file, host, port).unwrap().map(|secret| secret.expose().clone());
        assert_eq!(of("git.example", 8443), Some(format!("Basic {}", STANDARD.encode("bot:p@ss"))));
        assert_eq!(of("GIT.example", 8443), of("git.example", 8443));
        assert_eq!(of("git.example", 443), None);
        assert_eq!(of("evil.example", 8443), None);
        assert_eq!(of("git.example.evil.example", 8443), None);
        atomic_file::write(&file, b"https://bot:p@git.example\nbot:geheim\n", atomic_file::PRIVATE).unwrap();
        assert!(of("git.example", 443).is_some());
        let refused = authorization(&file, "other.example", 443).unwrap_err().to_string();
        assert!(refused.contains("line 2 of --policy-credentials") && !refused.contains("geheim"), "{refused}");
    }

    #[test]
    fn a_file_that_others_can_read_is_refused_without_its_content() {
        use std::os::unix::fs::PermissionsExt as _;
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("credentials");
        std::fs::write(&file, "https://bot:hunter2@git.example\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = authorization(&file, "git.example", 443).unwrap_err();
        assert!(error.reason.contains("--policy-credentials") && !error.reason.contains("hunter2"), "{error}");
    }

    #[test]
    fn made_up_lines() {
        fuzz!("git_credentials", vec![b"https://a:b@git.example".to_vec()], |bytes: &[u8]| {
            std::str::from_utf8(bytes).is_ok_and(|line| credentials_for(line, "git.example", 443).is_some())
        });
    }
}
