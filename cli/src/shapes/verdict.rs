//! Why a request waits, and what would happen to one.

use comity_proto::v1;
use serde::Serialize;

use super::placement::Placement;
use super::reclaims::Reclaims;
use super::request::Request;
use super::{text, time};
use crate::output::{Answer, columns, fields};
use crate::units::age;

/// One donor's answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DonorVerdict {
    /// Donor.
    pub donor: String,
    /// Whether the request fits there now.
    pub fits: bool,
    /// Stable code of the first reason against it.
    pub code: Option<String>,
    /// That reason.
    pub reason: Option<String>,
    /// What would unblock it.
    pub unblock: Option<String>,
    /// Policy documents behind it.
    pub by: Vec<String>,
}

impl From<v1::DonorVerdict> for DonorVerdict {
    fn from(verdict: v1::DonorVerdict) -> Self {
        Self {
            donor: verdict.donor,
            fits: verdict.fits,
            code: text(verdict.code),
            reason: text(verdict.reason),
            unblock: text(verdict.unblock),
            by: verdict.by,
        }
    }
}

fn donors(verdicts: &[DonorVerdict]) -> String {
    if verdicts.is_empty() {
        return String::new();
    }
    let row = |verdict: &DonorVerdict| {
        vec![
            verdict.donor.clone(),
            if verdict.fits { "yes".to_owned() } else { "no".to_owned() },
            verdict.reason.clone().unwrap_or_default(),
            verdict.unblock.clone().unwrap_or_default(),
            verdict.by.join(", "),
        ]
    };
    columns(
        &["donor", "fits", "first reason against it", "what would unblock it", "by"],
        verdicts.iter().map(row).collect(),
        "",
    )
}

/// Why a request waits.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The request.
    pub request: Request,
    /// One sentence.
    pub summary: String,
    /// By donor.
    pub donors: Vec<DonorVerdict>,
    /// Where it stands in the queue; none if it does not wait.
    pub standing: Option<Standing>,
    /// Leases that are being reclaimed for it, or will be next.
    pub reclaims: Option<Reclaims>,
    /// Revision it was computed at.
    pub revision: u64,
}

/// Where a waiting request stands.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Standing {
    /// How many are served before it, and itself; 0 while its start window has not opened.
    pub place: u32,
    /// How many wait.
    pub waiting: u32,
    /// Its tenant's part of what those hold and held who wait or hold something, in millionths.
    pub share_ppm: u64,
    /// The part that its tenant is entitled to among the same, in millionths.
    pub entitled_ppm: u64,
    /// Request for which room is reserved.
    pub reserved_for: Option<String>,
    /// When that can start.
    pub reserved_from_ms: Option<u64>,
    /// Where.
    pub reserved_donor: Option<String>,
    /// When this request could start under the present ends of leases.
    pub earliest_ms: Option<u64>,
    /// Where.
    pub earliest_donor: Option<String>,
    /// Whether that is after its start window closes, so that it fails before.
    pub too_late: bool,
}

impl From<v1::QueueStanding> for Standing {
    fn from(standing: v1::QueueStanding) -> Self {
        Self {
            place: standing.place,
            waiting: standing.waiting,
            share_ppm: standing.share_ppm,
            entitled_ppm: standing.entitled_ppm,
            reserved_for: text(standing.reserved_for),
            reserved_from_ms: time(standing.reserved_from_ms),
            reserved_donor: text(standing.reserved_donor),
            earliest_ms: time(standing.earliest_ms),
            earliest_donor: text(standing.earliest_donor),
            too_late: standing.too_late,
        }
    }
}

impl Standing {
    fn fields(&self, reclaims: Option<&Reclaims>, now_ms: u64) -> [(&'static str, String); 4] {
        let place = match self.place {
            0 => "not yet: its start window has not opened".to_owned(),
            place => format!("{place} of {}", self.waiting),
        };
        let reserved = self.reserved_for.as_ref().map(|request| {
            let donor = self.reserved_donor.as_deref().unwrap_or_default();
            format!("room at {donor} for {request}, free {}", age(self.reserved_from_ms.unwrap_or(0), now_ms))
        });
        [
            ("Place", place),
            ("Share", format!("{} of {} entitled", percent(self.share_ppm), percent(self.entitled_ppm))),
            ("Reserved", reserved.unwrap_or_default()),
            ("Earliest", earliest((self.earliest_ms, self.earliest_donor.as_deref()), self.too_late, reclaims, now_ms)),
        ]
    }
}

fn percent(ppm: u64) -> String {
    format!("{}.{} %", ppm / 10_000, ppm % 10_000 / 1_000)
}

/// When and where a request could start. Leases that are being reclaimed end then whether they are renewed or not.
fn earliest(start: (Option<u64>, Option<&str>), too_late: bool, reclaims: Option<&Reclaims>, now_ms: u64) -> String {
    let unless = |donor: &str| {
        let by_reclaim = reclaims.is_some_and(|reclaims| reclaims.donor == donor);
        if by_reclaim { "" } else { ", unless leases are renewed" }
    };
    match start {
        (Some(at), Some(donor)) if too_late => {
            format!("{} at {donor}, which is after --start-by: it fails before", age(at, now_ms))
        }
        (Some(at), Some(donor)) if at > now_ms => format!("{} at {donor}{}", age(at, now_ms), unless(donor)),
        (Some(_), Some(donor)) => format!("now at {donor}"),
        _ => "no end of leases makes room".to_owned(),
    }
}

impl From<v1::ExplainRequestResponse> for Explanation {
    fn from(response: v1::ExplainRequestResponse) -> Self {
        Self {
            request: response.request.unwrap_or_default().into(),
            summary: response.summary,
            donors: response.donors.into_iter().map(DonorVerdict::from).collect(),
            standing: response.standing.map(Standing::from),
            reclaims: response.reclaims.map(Reclaims::from),
            revision: response.revision,
        }
    }
}

impl Answer for Explanation {
    fn table(&self, now_ms: u64) -> String {
        let mut head = vec![
            ("Request", self.request.id.clone().unwrap_or_default()),
            ("State", self.request.state.as_str().to_owned()),
            ("GPUs", self.request.spec.gpus_summary()),
            ("Summary", self.summary.clone()),
        ];
        head.extend(self.standing.iter().flat_map(|standing| standing.fields(self.reclaims.as_ref(), now_ms)));
        head.extend(self.reclaims.iter().map(|it| ("Reclaimed", it.summary(now_ms))));
        format!("{}\n{}", fields(&head), donors(&self.donors))
    }
}

/// What would happen.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Quote {
    /// One sentence.
    pub summary: String,
    /// Where it would be placed; of a gang over several donors the first of its placements.
    pub placement: Option<Placement>,
    /// The other placements of such a gang.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub more_placements: Vec<Placement>,
    /// When it could start, after those that wait already.
    pub earliest_ms: Option<u64>,
    /// Where.
    pub earliest_donor: Option<String>,
    /// Whether that is after its start window closes, so that it would fail before.
    pub too_late: bool,
    /// Leases that would be reclaimed for it at once.
    pub reclaims: Option<Reclaims>,
    /// Price for the whole term in thousandths of a credit; none where nothing fits.
    pub price_milli_credits: Option<u64>,
    /// By donor.
    pub donors: Vec<DonorVerdict>,
}

impl From<v1::QuoteRequestResponse> for Quote {
    fn from(response: v1::QuoteRequestResponse) -> Self {
        Self {
            summary: response.summary,
            price_milli_credits: response.placement.is_some().then_some(response.price_milli_credits),
            placement: response.placement.map(Placement::from),
            more_placements: response.more_placements.into_iter().map(Placement::from).collect(),
            earliest_ms: time(response.earliest_ms),
            earliest_donor: text(response.earliest_donor),
            too_late: response.too_late,
            reclaims: response.reclaims.map(Reclaims::from),
            donors: response.donors.into_iter().map(DonorVerdict::from).collect(),
        }
    }
}

impl Answer for Quote {
    fn table(&self, now_ms: u64) -> String {
        let placements: Vec<String> =
            self.placement.iter().chain(&self.more_placements).map(Placement::summary).collect();
        let placements = if placements.is_empty() { "nowhere now".to_owned() } else { placements.join("; ") };
        let start = (self.earliest_ms, self.earliest_donor.as_deref());
        let earliest = earliest(start, self.too_late, self.reclaims.as_ref(), now_ms);
        let price = self.price_milli_credits.map(|price| format!("{} credits", super::gpus(price)));
        let mut head = vec![
            ("Summary", self.summary.clone()),
            ("Placement", placements),
            ("Earliest", earliest),
            ("Price", price.unwrap_or_else(|| "-".to_owned())),
        ];
        head.extend(self.reclaims.iter().map(|it| ("Reclaimed", it.summary(now_ms))));
        format!("{}\n{}", fields(&head), donors(&self.donors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(donor: &str, count: u64) -> v1::Placement {
        v1::Placement {
            donor: donor.to_owned(),
            resource_name: "nvidia.com/gpu".to_owned(),
            resource_count: count,
            ..v1::Placement::default()
        }
    }

    #[test]
    fn a_start_after_the_window_is_told_and_what_fits_nowhere_has_no_price() {
        let response = v1::QuoteRequestResponse {
            earliest_ms: 7_200_000,
            earliest_donor: "north".to_owned(),
            too_late: true,
            ..v1::QuoteRequestResponse::default()
        };
        let quote = Quote::from(response.clone());
        let table = quote.table(0);
        assert!(table.contains("in 2h at north, which is after --start-by: it fails before"), "{table}");
        assert!(table.contains("-\n") && !table.contains("credits"), "{table}");
        let json = serde_json::to_value(&quote).expect("it is plain data");
        assert!(json["priceMilliCredits"].is_null() && json["tooLate"] == true, "{json}");
        // What is lent for nothing costs nothing.
        let free = Quote::from(v1::QuoteRequestResponse { placement: Some(placement("north", 1)), ..response });
        assert_eq!(free.price_milli_credits, Some(0));
    }

    #[test]
    fn a_quote_by_preemption_says_what_yields_and_does_not_speak_of_renewals() {
        let reclaims = v1::Reclaims {
            donor: "north".to_owned(),
            gpus_milli: 1_000,
            until_ms: 600_000,
            leases: vec![v1::ReclaimedLease {
                gpus_milli: 1_000,
                notice_ms: 600_000,
                until_ms: 600_000,
                ..Default::default()
            }],
            ..v1::Reclaims::default()
        };
        let response = v1::QuoteRequestResponse {
            earliest_ms: 600_000,
            earliest_donor: "north".to_owned(),
            reclaims: Some(reclaims),
            ..v1::QuoteRequestResponse::default()
        };
        let table = Quote::from(response.clone()).table(0);
        assert!(table.contains("in 10m at north\n"), "{table}");
        assert!(table.contains("1 lease at north (1 GPUs) would be reclaimed with 10m of notice"), "{table}");
        let json = serde_json::to_value(Quote::from(response.clone())).expect("it is plain data");
        assert_eq!((&json["reclaims"]["donor"], &json["reclaims"]["given"]), (&"north".into(), &false.into()));
        // Where another donor's leases end sooner, they may be renewed.
        let elsewhere = v1::QuoteRequestResponse { earliest_donor: "south".to_owned(), ..response };
        let table = Quote::from(elsewhere).table(0);
        assert!(table.contains("in 10m at south, unless leases are renewed"), "{table}");
    }

    #[test]
    fn a_quote_shows_all_placements_of_a_gang_over_several_donors() {
        let quote = Quote::from(v1::QuoteRequestResponse {
            placement: Some(placement("north", 8)),
            more_placements: vec![placement("south", 2)],
            price_milli_credits: 20_000,
            ..v1::QuoteRequestResponse::default()
        });
        let table = quote.table(0);
        assert!(table.contains("8 nvidia.com/gpu on north") && table.contains("2 nvidia.com/gpu on south"), "{table}");
        let json = serde_json::to_value(&quote).expect("it is plain data");
        assert_eq!(json["placement"]["donor"], "north");
        assert_eq!(json["morePlacements"][0]["donor"], "south");
        // Other quotes look as they did.
        let one = v1::QuoteRequestResponse { placement: Some(placement("north", 8)), ..Default::default() };
        let json = serde_json::to_value(Quote::from(one)).expect("it is plain data");
        assert!(json.get("morePlacements").is_none(), "{json}");
    }
}
