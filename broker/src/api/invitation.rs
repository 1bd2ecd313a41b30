//! Join tokens at the API: makes them, and checks calls that use one.

use comity_core::command::check_invite;
use comity_core::refusal::Code;
use comity_core::{Command, Idempotency, InviteSubject, Millis, Refusal, ReplyBody, State, Timestamp};
use comity_runtime::join_token::{JoinToken, SECRET_BYTES};
use comity_runtime::spiffe::{ClusterName, SpiffeId, SpiffeKind, TrustDomain, UserName};
use comity_runtime::tls::BrokerEndpoints;

use crate::api::caller::Caller;
use crate::api::join_secret::{self, SecretPeriod};
use crate::api::rpc_error::RpcError;
use crate::context::Context;
use crate::group::Consistency;

const MINUTE_MS: u64 = 60_000;

/// Lifetimes of the tokens of one kind.
pub struct Lifetimes {
    default_ms: u64,
    max_ms: u64,
    /// The bounds for people.
    remedy: &'static str,
}

impl Lifetimes {
    /// Tokens of clusters and users.
    pub const MEMBER: Self = Self {
        default_ms: 60 * MINUTE_MS,
        max_ms: 7 * 24 * 60 * MINUTE_MS,
        remedy: "use 0 for one hour, or 60000 (a minute) to 604800000 (7 days)",
    };
    /// Tokens of brokers, which are as powerful as the intermediate's key.
    pub const BROKER: Self = Self {
        default_ms: 15 * MINUTE_MS,
        max_ms: 60 * MINUTE_MS,
        remedy: "use 0 for 15 minutes, or 60000 (a minute) to 3600000 (an hour)",
    };

    /// The lifetime that a call asks for.
    pub fn parse(&self, ttl_ms: u64) -> Result<Millis, Refusal> {
        match ttl_ms {
            0 => Ok(Millis(self.default_ms)),
            ttl_ms if (MINUTE_MS..=self.max_ms).contains(&ttl_ms) => Ok(Millis(ttl_ms)),
            _ => Err(Refusal::invalid("ttl_ms", ttl_ms, "is out of range", self.remedy)),
        }
    }
}

/// A token that was made, or made again by a repeated call.
pub struct NewToken {
    /// The token.
    pub token: JoinToken,
    /// Who may join with it.
    pub subject: InviteSubject,
    /// When it expires.
    pub expires_at: Timestamp,
}

/// The user in a call.
pub fn parse_user(name: &str) -> Result<UserName, Refusal> {
    UserName::new(name).map_err(|error| {
        Refusal::invalid("user", name, &format!("is refused: {error}"), "write a name like alice or ada.lovelace")
    })
}

/// The user whom a maintainer names: by name, or by the id in this federation, as policy documents do.
pub fn parse_user_or_id(given: &str, domain: &TrustDomain) -> Result<UserName, Refusal> {
    let Ok(id) = given.parse::<SpiffeId>() else { return parse_user(given) };
    let user = id.as_user().filter(|_| id.trust_domain() == domain).cloned();
    user.ok_or_else(|| {
        let remedy = format!("write a name like alice, or spiffe://{domain}/user/alice");
        Refusal::invalid("user", given, "is no user of this federation", remedy)
    })
}

/// SHA-256 of a presented secret, in hex.
pub fn parse_secret(secret: &[u8]) -> Result<String, Refusal> {
    if secret.len() == SECRET_BYTES {
        return Ok(join_secret::hash_hex(secret));
    }
    let remedy = format!("send the {SECRET_BYTES} bytes of the join token");
    Err(Refusal::invalid("secret", format!("{} bytes", secret.len()), "has the wrong length", remedy))
}

/// Records an invitation and makes its token. `command` gets the hash of the secret.
pub async fn invite(
    context: &Context,
    caller: &Caller,
    invited: &SpiffeKind,
    idempotency: Idempotency,
    command: impl FnOnce(String) -> Command,
) -> Result<NewToken, RpcError> {
    let periods = SecretPeriod::of(context.now()).with_neighbours();
    let (name, key) = (caller.name(), idempotency.key.clone());
    let derived = |period| join_secret::derive(&context.invitation_key, &name, invited, &key, period);
    let hash = |period| join_secret::hash_hex(derived(period).expose());
    let command = command(hash(periods[0]));
    // The first of a repeated call may have been made in a neighbouring period. If its token is used, any will do.
    let recorded = |state: &State, reply: ReplyBody| match reply {
        ReplyBody::Invited { subject, expires_at } => {
            let of_first = periods.into_iter().find(|period| state.invites.contains_key(&hash(*period)));
            Ok(Some((subject, expires_at, of_first.unwrap_or(periods[0]))))
        }
        _ => Ok(None),
    };
    let invited = context.mutate(caller, command, Some(idempotency), recorded).await;
    let invited = invited.map_err(|error| context.with_suggestion(caller, error))?;
    let (subject, expires_at, period) = invited.ok_or(RpcError::Internal { what: "recording the invitation" })?;
    let secret = derived(period);
    let unnameable = |_| RpcError::Internal { what: "naming the invited subject" };
    let kind = match &subject {
        InviteSubject::Cluster(cluster) => SpiffeKind::Cluster(ClusterName::new(cluster.as_str()).map_err(unnameable)?),
        InviteSubject::User(user) => SpiffeKind::User(UserName::new(user).map_err(unnameable)?),
        InviteSubject::Broker(broker) => SpiffeKind::Broker(*broker),
    };
    let id = SpiffeId::new(context.ca.trust_domain().clone(), kind);
    tracing::info!(%id, caller = caller.name(), "invited");
    let token = JoinToken { brokers: broker_endpoints(context)?, ca_sha256: context.ca.root_sha256(), id, secret };
    Ok(NewToken { token, subject, expires_at })
}

/// The brokers' client addresses, this broker first.
fn broker_endpoints(context: &Context) -> Result<BrokerEndpoints, RpcError> {
    let mut members = context.group.members();
    members.sort_by_key(|member| (member.id != context.id, member.id));
    BrokerEndpoints::new(members.iter().map(|member| &member.address.client))
        .map_err(|_| RpcError::Internal { what: "listing the brokers' addresses" })
}

/// Keeps guesses out of the log: proposes only outstanding tokens and repeated calls.
pub async fn check_outstanding(
    context: &Context,
    subject: &InviteSubject,
    secret_sha256: &str,
    idempotency: &Idempotency,
) -> Result<(), RpcError> {
    let now = context.now();
    let known = |state: &State| {
        if comity_core::idempotency::seen(&state.idempotency, idempotency).is_some() {
            return Ok(());
        }
        check_invite(state, now, secret_sha256, subject).map(drop)
    };
    Ok(context.group.read(Consistency::Linearizable, known).await??)
}

/// Maps an idempotency conflict, the same token with another body, to a used token.
pub fn used_up(subject: &InviteSubject, refusal: Refusal) -> Refusal {
    if refusal.code == Code::IdempotencyConflict {
        let reason = "the join token was already used";
        return Refusal::new(Code::InvalidToken, reason, subject.remedy()).at("secret", "[redacted]");
    }
    refusal
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_named_by_name_or_by_the_id_in_this_federation() {
        let domain = TrustDomain::new("dev.test").unwrap();
        let parse = |given| parse_user_or_id(given, &domain);
        for given in ["alice", "spiffe://dev.test/user/alice"] {
            assert_eq!(parse(given).unwrap().as_str(), "alice");
        }
        for given in ["spiffe://other.test/user/alice", "spiffe://dev.test/cluster/ncc-main"] {
            let refusal = parse(given).unwrap_err();
            assert_eq!((refusal.field.as_str(), refusal.value.as_str()), ("user", given));
            assert!(refusal.remedy.contains("spiffe://dev.test/user/alice"), "{refusal}");
        }
        assert!(parse("Alice Liddell").unwrap_err().remedy.contains("a name like alice"));
    }
}
