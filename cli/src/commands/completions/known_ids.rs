//! Candidates for arguments that name an object of the federation.

use std::ffi::{OsStr, OsString};
use std::future::Future;
use std::time::Duration;

use clap::{Args as _, FromArgMatches as _};
use clap_complete::{ArgValueCompleter, CompletionCandidate};
use comity_policy::Bundle;
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_proto::v1::lease_service_client::LeaseServiceClient;
use comity_proto::v1::peering_service_client::PeeringServiceClient;
use comity_proto::v1::policy_service_client::PolicyServiceClient;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_runtime::BrokerChannel;

use crate::commands::policy::compiled;
use crate::failure::Failure;
use crate::global_args::GlobalArgs;
use crate::session::{Session, call};

/// Longest wait for the broker: a person has just pressed Tab.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// Most candidates of one kind: more than anybody reads.
const MOST: u32 = 200;
/// An id, and a few words about it.
type Candidate = (String, String);

/// Completes leases that have not ended.
pub(crate) fn leases() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        candidates(typed, |channel| async move {
            let request = v1::ListLeasesRequest { page: first_page(), consistency: stale(), ..Default::default() };
            let response = call(LeaseServiceClient::new(channel).list_leases(request)).await?;
            let words = |lease: v1::Lease| {
                let donor = lease.placement.unwrap_or_default().donor;
                (lease.id, format!("{} from {donor}", lease.tenant))
            };
            Ok(response.leases.into_iter().map(words).collect())
        })
    })
}

/// Completes requests that have not ended.
pub(crate) fn requests() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        candidates(typed, |channel| async move {
            let request = v1::ListRequestsRequest { page: first_page(), consistency: stale(), ..Default::default() };
            let response = call(RequestServiceClient::new(channel).list_requests(request)).await?;
            Ok(response.requests.into_iter().map(|request| (request.id, request.message)).collect())
        })
    })
}

/// Completes peerings that are not closed.
pub(crate) fn peerings() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        candidates(typed, |channel| async move {
            let request = v1::ListPeeringsRequest { page: first_page(), consistency: stale(), ..Default::default() };
            let response = call(PeeringServiceClient::new(channel).list_peerings(request)).await?;
            let words = |peering: v1::Peering| (peering.id, format!("{} to {}", peering.donor, peering.origin));
            Ok(response.peerings.into_iter().map(words).collect())
        })
    })
}

/// Completes member clusters.
pub(crate) fn clusters() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        candidates(typed, |channel| async move {
            let request = v1::ListClustersRequest { page: first_page(), consistency: stale() };
            let response = call(FederationServiceClient::new(channel).list_clusters(request)).await?;
            Ok(response.clusters.into_iter().map(|cluster| (cluster.id, cluster.institution)).collect())
        })
    })
}

/// Completes open invitations.
pub(crate) fn invitations() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        candidates(typed, |channel| async move {
            let request = v1::ListInvitationsRequest { consistency: stale() };
            let response = call(FederationServiceClient::new(channel).list_invitations(request)).await?;
            let words = |it: v1::Invitation| (it.id, format!("{} {}", it.kind, it.invited));
            Ok(response.invitations.into_iter().map(words).collect())
        })
    })
}

/// Completes clusters that policy names, members or not.
pub(crate) fn policy_clusters() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        candidates(typed, |channel| async move {
            let bundle = bundle(channel).await?;
            let clusters = bundle.enrollable_clusters();
            Ok(clusters.map(|(cluster, institution)| (cluster.to_owned(), institution.to_owned())).collect())
        })
    })
}

/// Completes institutions.
pub(crate) fn institutions() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        candidates(typed, |channel| async move {
            let bundle = bundle(channel).await?;
            let words = |(name, institution): (&String, &comity_policy::Document<comity_policy::Institution>)| {
                (name.clone(), institution.spec.display_name.clone())
            };
            Ok(bundle.institutions.iter().map(words).collect())
        })
    })
}

/// Completes tenants.
pub(crate) fn tenants() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        candidates(typed, |channel| async move {
            let bundle = bundle(channel).await?;
            let words = |(name, tenant): (&String, &comity_policy::Document<comity_policy::Tenant>)| {
                (name.clone(), tenant.spec.display_name.clone())
            };
            Ok(bundle.tenants.iter().map(words).collect())
        })
    })
}

/// Completes GPU classes.
pub(crate) fn classes() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        candidates(typed, |channel| async move {
            Ok(bundle(channel).await?.classes.keys().map(|name| (name.clone(), String::new())).collect())
        })
    })
}

/// Completes priority classes.
pub(crate) fn priorities() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        candidates(typed, |channel| async move {
            Ok(bundle(channel).await?.priorities.keys().map(|name| (name.clone(), String::new())).collect())
        })
    })
}

/// Completes request templates that the caller's tenants are offered.
pub(crate) fn templates() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        candidates(typed, |channel| async move {
            let request = v1::ListRequestTemplatesRequest {
                page: first_page(),
                consistency: stale(),
                ..v1::ListRequestTemplatesRequest::default()
            };
            let response = call(RequestServiceClient::new(channel).list_request_templates(request)).await?;
            Ok(response.templates.into_iter().map(|template| (template.name, template.title)).collect())
        })
    })
}

async fn bundle(channel: BrokerChannel) -> Result<Bundle, Failure> {
    let request = v1::GetPolicyRequest { consistency: stale() };
    let answer = call(PolicyServiceClient::new(channel).get_policy(request)).await?;
    compiled(answer.bundle)
}

fn first_page() -> Option<v1::PageRequest> {
    Some(v1::PageRequest { size: MOST, token: String::new() })
}

fn stale() -> i32 {
    v1::Consistency::Stale.into()
}

/// Asks the broker. Without an answer there are no candidates, and no message: it would garble the prompt.
fn candidates<F>(typed: &OsStr, ask: impl FnOnce(BrokerChannel) -> F) -> Vec<CompletionCandidate>
where
    F: Future<Output = Result<Vec<Candidate>, Failure>>,
{
    let (Some(typed), Some(session)) = (typed.to_str(), session_of(std::env::args_os())) else { return Vec::new() };
    comity_runtime::install_crypto_provider();
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return Vec::new() };
    let answer = runtime.block_on(async {
        let channel = session.channel()?;
        tokio::time::timeout(ANSWER_LIMIT, ask(channel)).await.map_err(|_| Failure::unavailable("no answer"))?
    });
    shown(typed, answer.unwrap_or_default())
}

fn shown(typed: &str, candidates: Vec<Candidate>) -> Vec<CompletionCandidate> {
    let fitting = candidates.into_iter().filter(|(id, _)| id.starts_with(typed));
    fitting.map(|(id, words)| CompletionCandidate::new(id).help((!words.is_empty()).then(|| words.into()))).collect()
}

/// The session of the command line that is being completed; the rest of that line may be incomplete.
fn session_of(words: impl Iterator<Item = OsString>) -> Option<Session> {
    let globals = GlobalArgs::augment_args(clap::Command::new("comity"));
    let with_value = globals.get_arguments().filter(|arg| arg.get_action().takes_values());
    let flags: Vec<String> = with_value.filter_map(|arg| Some(format!("--{}", arg.get_long()?))).collect();
    let mut chosen = vec![OsString::from("comity")];
    let mut words = words.skip_while(|word| word != "--").skip(2);
    while let Some(word) = words.next() {
        let text = word.to_string_lossy().into_owned();
        if flags.contains(&text) {
            chosen.extend([Some(word), words.next()].into_iter().flatten());
        } else if flags.iter().any(|flag| text.strip_prefix(flag).is_some_and(|rest| rest.starts_with('='))) {
            chosen.push(word);
        }
    }
    let matches = globals.try_get_matches_from(chosen).ok()?;
    Some(Session::new(&GlobalArgs::from_arg_matches(&matches).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_broker_is_that_of_the_line() {
        let session = |line: &str| session_of(line.split(' ').map(OsString::from));
        let named = session("comity -- comity --broker=a:1 --identity /tmp lease show").expect("complete");
        assert_eq!(named.endpoints().expect("one").to_string(), "a:1");
        let later = session("comity -- comity lease show --all --broker b:2 le").expect("complete");
        assert_eq!(later.endpoints().expect("one").to_string(), "b:2");
        assert!(session("comity -- comity lease --broker").is_none());
    }

    #[test]
    fn only_ids_that_begin_as_typed_are_shown() {
        let known = || vec![("lease-1".to_owned(), "poly-ml".to_owned()), ("lease-21".to_owned(), String::new())];
        let ids = |typed: &str| {
            let shown = shown(typed, known());
            shown.iter().map(|candidate| candidate.get_value().to_os_string()).collect::<Vec<_>>()
        };
        assert_eq!(ids("lease-2"), ["lease-21"]);
        assert_eq!(ids("").len(), 2);
        assert_eq!(ids("peer"), [""; 0]);
    }
}
