//! Calls of a server that speaks Git over HTTPS.

use bytes::Bytes;
use comity_runtime::secret::SecretString;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, LOCATION, USER_AGENT};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;

use crate::policy_source::http_host::HttpHost;
use crate::policy_source::pull_error::PullError;

/// Servers of Git answer programs that call themselves git.
const GIT_AGENT: &str = concat!("git/comity-", env!("CARGO_PKG_VERSION"));
const ANSWER: &str = "check the address: a browser shows what is there";

/// A server and what it takes to be answered.
pub(super) struct GitHost {
    pub(super) server: HttpHost,
    pub(super) authorization: Option<SecretString>,
}

/// One call.
pub(super) struct Call<'c> {
    pub(super) method: Method,
    pub(super) path: &'c str,
    /// The media type of the body, or that is accepted if there is no body.
    pub(super) media_type: &'static str,
    pub(super) body: Vec<u8>,
    /// Bytes of the answer.
    pub(super) limit: usize,
}

impl GitHost {
    /// Calls the server. Ends when the caller's deadline drops it.
    pub(super) async fn call(&self, call: Call<'_>) -> Result<Bytes, PullError> {
        let answer = self.server.exchange(self.request(&call)?, call.limit).await?;
        self.check_status(answer.status, answer.headers.get(LOCATION))?;
        Ok(answer.body)
    }

    fn request(&self, call: &Call<'_>) -> Result<Request<Full<Bytes>>, PullError> {
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(call.path)
            .header(USER_AGENT, GIT_AGENT)
            .header("git-protocol", "version=2");
        request = if call.body.is_empty() {
            request.header(ACCEPT, call.media_type)
        } else {
            request.header(CONTENT_TYPE, call.media_type)
        };
        if let Some(secret) = &self.authorization {
            let mut value = HeaderValue::from_str(secret.expose())
                .map_err(|_| PullError::new("the credentials cannot be sent", ANSWER))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        request
            .body(Full::new(Bytes::from(call.body.clone())))
            .map_err(|error| PullError::saying("the repository cannot be asked for", &error, ANSWER))
    }

    fn check_status(&self, status: StatusCode, location: Option<&HeaderValue>) -> Result<(), PullError> {
        let host = &self.server.host;
        if status.is_success() {
            return Ok(());
        }
        if status.is_redirection() {
            let to = location.and_then(|to| to.to_str().ok()).unwrap_or("nowhere");
            // A redirect may lead to a server for which nobody set the source.
            let remedy = "set the source to the address that the server names";
            return Err(PullError::saying(&format!("{host} redirects"), &to, remedy));
        }
        Err(match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => PullError::new(
                format!("{host} refuses access ({status})"),
                "give each broker a token that reads the repository, with --policy-credentials",
            ),
            StatusCode::NOT_FOUND => PullError::new(
                format!("{host} has no such repository, or it needs credentials ({status})"),
                "check the address, and give each broker a token with --policy-credentials",
            ),
            _ => PullError::new(format!("{host} answers {status}"), "try again later, or ask who runs the server"),
        })
    }
}
