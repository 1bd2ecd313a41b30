//! `comity user`: people and robots that call the brokers.

use clap::{Args, Subcommand};
use comity_policy::{Bundle, BundleSource, Roles, SourceFile};
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_proto::v1::policy_service_client::PolicyServiceClient;
use comity_runtime::{BrokerChannel, SpiffeId, UserName};

use super::invitation::{Invitation, InvitationText, Invited};
use crate::failure::Failure;
use crate::session::{Session, call, idempotency_key};
use crate::units::{format_duration, parse_duration_ms};

const ADD_EXAMPLES: &str = "\
Examples:
  comity user add alice                         prints 'comity login TOKEN' for alice to run
  comity user add alice --ttl 24h > alice.token
  comity user add alice -o json | jq -r .command

The token is a secret. It works once and is shown once: on a terminal with the command to run, in
a file or a pipe alone. alice makes her own key; nobody else sees it. Only a maintainer may invite
users. Policy decides what alice may do.
";

/// `comity user`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  comity user add alice\n")]
pub enum UserCommand {
    /// Invite a user: print the command with which they log in
    #[command(after_help = ADD_EXAMPLES)]
    Add(UserAddArgs),
}

/// `comity user add`.
#[derive(Debug, Args)]
pub struct UserAddArgs {
    /// Name of the user, as in policy documents after `/user/`
    #[arg(value_name = "NAME")]
    user: UserName,
    /// Lifetime of the token: 1m to 7d
    #[arg(long, default_value = "1h", value_parser = parse_duration_ms, allow_hyphen_values = true,
        value_name = "DURATION")]
    ttl: u64,
    /// Key that makes a repeated call safe: the same key creates no second token [default: random]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

impl UserCommand {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// [`Failure`] of the call, or if standard output cannot be written.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::Add(args) => args.run(session).await,
        }
    }
}

impl UserAddArgs {
    async fn run(&self, session: &Session) -> Result<(), Failure> {
        let channel = session.channel()?;
        let request = v1::InviteUserRequest {
            user: self.user.to_string(),
            ttl_ms: self.ttl,
            idempotency_key: idempotency_key(self.idempotency_key.as_deref()),
        };
        let response = call(FederationServiceClient::new(channel.clone()).invite_user(request)).await?;
        let id = SpiffeId::user(session.caller()?.id().trust_domain().clone(), self.user.clone());
        eprintln!("{}", roles_of(channel, session, &id).await);
        eprintln!("single-use token, expires in {}:", format_duration(self.ttl));
        session.print(&Invitation::new(
            Invited::User(self.user.to_string()),
            response.token,
            response.expires_at_ms,
            InvitationText::for_standard_output(),
        ))
    }
}

/// The roles that the bundle in force gives a user, as one sentence.
async fn roles_of(channel: BrokerChannel, session: &Session, id: &SpiffeId) -> String {
    let mut client = PolicyServiceClient::new(channel);
    let policy = match call(client.get_policy(v1::GetPolicyRequest { consistency: session.consistency() })).await {
        Ok(policy) => policy.bundle.unwrap_or_default(),
        Err(failure) => return format!("the roles of {id} are unknown: {}", failure.reason),
    };
    let files = policy.files.into_iter().map(|file| SourceFile { path: file.path, text: file.text }).collect();
    match Bundle::compile(&BundleSource { files, commit: None }) {
        Ok(bundle) => roles_text(id, &bundle.roles_of(&id.to_string())),
        Err(_) => format!("the roles of {id} are unknown: this version of comity cannot read the bundle in force"),
    }
}

fn roles_text(id: &SpiffeId, roles: &Roles) -> String {
    if roles.is_empty() {
        return format!(
            "policy gives {id} no role yet: add 'id: {id}' with 'role: submitter' to the members of a Tenant document, \
             and apply it"
        );
    }
    let mut parts = Vec::new();
    if roles.federation_admin {
        parts.push("maintainer of the federation".to_owned());
    }
    parts.extend(roles.institutions_operated.iter().map(|name| format!("operator of {name}")));
    parts.extend(roles.tenants.iter().map(|(tenant, role)| format!("{} of tenant {tenant}", role.as_str())));
    format!("policy makes {id}: {}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use comity_policy::TenantRole;

    use super::*;

    #[test]
    fn roles_are_named_or_how_to_get_one() {
        let id: SpiffeId = "spiffe://dev.test/user/alice".parse().expect("valid");
        let text = roles_text(&id, &Roles::default());
        assert!(text.contains("no role yet") && text.contains("'id: spiffe://dev.test/user/alice'"), "{text}");
        let roles = Roles {
            federation_admin: true,
            institutions_operated: BTreeSet::from(["polytechnic".to_owned()]),
            tenants: BTreeMap::from([("poly-ml".to_owned(), TenantRole::Submitter)]),
        };
        assert_eq!(
            roles_text(&id, &roles),
            "policy makes spiffe://dev.test/user/alice: maintainer of the federation, operator of polytechnic, \
             submitter of tenant poly-ml"
        );
    }
}
