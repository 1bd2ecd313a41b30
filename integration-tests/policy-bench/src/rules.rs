//! Rules in CEL and in Rego.

/// A rule in both languages.
#[derive(Debug, Clone)]
pub struct TwinRule {
    /// Name of the document.
    pub name: String,
    /// `deny` or `require`.
    pub effect: &'static str,
    /// The condition in CEL.
    pub cel: String,
    /// The condition in Rego: bodies of which one has to hold.
    pub rego: Vec<String>,
}

/// The first `count` rules of a sequence that uses every variable, with and without alternatives.
#[must_use]
pub fn twin_rules(count: usize) -> Vec<TwinRule> {
    (0..count).map(twin_rule).collect()
}

fn twin_rule(number: usize) -> TwinRule {
    let (kind, turn) = (number % 10, number / 10);
    let (effect, cel, rego) = match kind {
        0 => {
            let class = turn % 8;
            (
                "deny",
                format!("class.name == 'c-{class}' && donor.region != institution.region && tenant.weight < 60"),
                vec![format!("input.class == \"c-{class}\"; donor.region != institution.region; tenant.weight < 60")],
            )
        }
        1 => {
            let (tenant, gpus) = (turn * 37, turn % 4 + 1);
            (
                "deny",
                format!("tenant.name == 't-{tenant}' && request.gpus.isGreaterThan(quantity('{gpus}'))"),
                vec![format!("input.tenant == \"t-{tenant}\"; input.request_milli > {gpus}000")],
            )
        }
        2 => {
            let (lender, borrower) = (turn * 3, turn * 7 + 1);
            let next = borrower + 1;
            (
                "deny",
                format!(
                    "donor.institution in ['inst-{lender}', 'inst-{next}'] && institution.name in ['inst-{borrower}', \
                     'inst-49']"
                ),
                vec![format!(
                    "donor.institution in [\"inst-{lender}\", \"inst-{next}\"]; tenant.institution in \
                     [\"inst-{borrower}\", \"inst-49\"]"
                )],
            )
        }
        3 => {
            let hours = 40 + turn;
            let seconds = hours * 3_600;
            (
                "require",
                format!("request.durationSeconds <= {seconds} || institution.weight >= 150"),
                vec![format!("input.duration_s <= {seconds}"), "institution.weight >= 150".to_owned()],
            )
        }
        4 => {
            let rank = 60 + turn * 10;
            (
                "require",
                format!("class.rank < {rank} || request.origin.startsWith('site-') || tenant.weight > 100"),
                vec![
                    format!("class.rank < {rank}"),
                    "startswith(input.origin, \"site-\")".to_owned(),
                    "tenant.weight > 100".to_owned(),
                ],
            )
        }
        5 => {
            let milli = 60 + turn * 10;
            (
                "deny",
                format!("lease.gpus.isLessThan(quantity('{milli}m')) && class.name in ['c-6', 'c-7']"),
                vec![format!("input.gpus_milli < {milli}; input.class in [\"c-6\", \"c-7\"]")],
            )
        }
        6 => {
            let (region, credits) = (turn % 5, turn % 3 + 5);
            (
                "deny",
                format!(
                    "request.delivery == 'namespace' && donor.region == 'region-{region}' && \
                     class.priceCredits.isGreaterThan(quantity('{credits}'))"
                ),
                vec![format!(
                    "input.delivery == \"namespace\"; donor.region == \"region-{region}\"; class.price_milli > \
                     {credits}000"
                )],
            )
        }
        7 => {
            let (site, tenant) = (turn * 11, turn * 50);
            let next = tenant + 1;
            (
                "require",
                format!("donor.name != 'site-{site}' || tenant.name in ['t-{tenant}', 't-{next}']"),
                vec![
                    format!("input.donor != \"site-{site}\""),
                    format!("input.tenant in [\"t-{tenant}\", \"t-{next}\"]"),
                ],
            )
        }
        8 => {
            let (region, gpus) = (turn % 5, turn % 4 + 10);
            (
                "deny",
                format!(
                    "!(class.rank >= 40) && institution.region == 'region-{region}' && \
                     request.gpus.compareTo(quantity('{gpus}')) >= 0"
                ),
                vec![format!(
                    "not class.rank >= 40; institution.region == \"region-{region}\"; input.request_milli >= {gpus}000"
                )],
            )
        }
        _ => {
            let seconds = 150_000 + turn * 1_000;
            (
                "deny",
                format!("institution.name == donor.institution && request.durationSeconds > {seconds}"),
                vec![format!("tenant.institution == donor.institution; input.duration_s > {seconds}")],
            )
        }
    };
    TwinRule { name: format!("rule-{number}"), effect, cel, rego }
}
