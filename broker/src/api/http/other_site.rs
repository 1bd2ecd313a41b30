//! Tells requests that a page of another site makes a browser send. A browser adds the user's certificate by itself.

use http::header::{HOST, HeaderName, ORIGIN};
use http::request::Parts;
use tonic::Code;

use crate::api::http::connect_error::Refused;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Values of [`FETCH_SITE`] for requests of the broker's own pages, and of a person who typed the address.
const OWN: [&str; 2] = ["same-origin", "none"];

/// Whether a browser sent the request.
#[must_use]
pub fn is_by_browser(request: &Parts) -> bool {
    request.headers.contains_key(ORIGIN) || request.headers.contains_key(FETCH_SITE)
}

/// Refuses requests of other sites' pages.
///
/// # Errors
/// [`Refused`] with HTTP status 403.
pub fn refuse(request: &Parts) -> Result<(), Refused> {
    let refused = |name: &HeaderName, value: &[u8]| {
        let value: String = String::from_utf8_lossy(value).chars().take(80).collect();
        let reason = format!("a page of another site sent this request ({name}: {value})");
        Err(Refused::new(Code::PermissionDenied, reason, "call the broker from a program, not from a web page"))
    };
    if let Some(site) = request.headers.get_all(FETCH_SITE).iter().find(|site| !OWN.iter().any(|own| own == site)) {
        return refused(&FETCH_SITE, site.as_bytes());
    }
    let host = request.uri.authority().map(|authority| authority.as_str().as_bytes());
    let host = host.or_else(|| request.headers.get(HOST).map(|host| host.as_bytes()));
    let is_own = |origin: &[u8]| {
        let authority = origin.strip_prefix(b"https://");
        authority.zip(host).is_some_and(|(authority, host)| authority.eq_ignore_ascii_case(host))
    };
    match request.headers.get_all(ORIGIN).iter().find(|origin| !is_own(origin.as_bytes())) {
        Some(origin) => refused(&ORIGIN, origin.as_bytes()),
        None => Ok(()),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use http::Request;

    use super::*;

    fn status(uri: &str, headers: &[(&str, &str)]) -> Option<u16> {
        let mut request = Request::post(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        assert_eq!(is_by_browser(&parts), headers.iter().any(|(name, _)| *name != "host"));
        refuse(&parts).err().map(|refused| refused.into_response().status().as_u16())
    }

    #[test]
    fn programs_and_the_brokers_own_pages_may_call() {
        let host = ("host", "b1.example:7443");
        assert_eq!(status("/x", &[host]), None);
        assert_eq!(status("/x", &[host, ("origin", "https://B1.example:7443")]), None);
        assert_eq!(status("https://b1.example:7443/x", &[("origin", "https://b1.example:7443")]), None);
        assert_eq!(status("/x", &[host, ("sec-fetch-site", "same-origin")]), None);
        assert_eq!(status("/x", &[host, ("sec-fetch-site", "none")]), None);
    }

    #[test]
    fn pages_of_other_sites_may_not() {
        let host = ("host", "b1.example:7443");
        for value in ["cross-site", "same-site", "", "unknown"] {
            assert_eq!(status("/x", &[host, ("sec-fetch-site", value)]), Some(403), "{value}");
        }
        for value in
            ["https://elsewhere.example", "https://b1.example", "http://b1.example:7443", "null", "", "b1.example:7443"]
        {
            assert_eq!(status("/x", &[host, ("origin", value)]), Some(403), "{value}");
        }
        let own = ("origin", "https://b1.example:7443");
        assert_eq!(status("/x", &[host, own, ("origin", "https://elsewhere.example")]), Some(403));
        assert_eq!(status("/x", &[host, own, ("sec-fetch-site", "cross-site")]), Some(403));
        assert_eq!(status("/x", &[own]), Some(403));
    }
}
