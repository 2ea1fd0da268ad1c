//! What a verdict takes: by tokens, layers, models, by how stages are checked and where linear layers are evaluated.

use super::{measured, medians};
use clap::ValueEnum as _;
use qdiff::machine::Machine;
use qdiff::number::counted;
use qdiff::report::NONE;
use qdiff::report::{Screen, Section, Table};
use qdiff::verdict::CheckMode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What judging takes; on file, what REPORT.md tells. Growth is by the same with half the tokens: of the whole, of a token,
/// and of an element that both sides captured.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct VerdictBench {
    /// Threads.
    pub threads: usize,
    /// Rounds; every figure is a median over them.
    pub rounds: u16,
    /// Where it was measured, if that is on file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// The GPU that evaluated linear layers, where one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// Model by model, by the number of tokens, the oracle and the check.
    pub verdicts: Vec<VerdictRow>,
    /// The layers of the shortest prompt of each model: some and all of them.
    pub layers: Vec<LayersRow>,
}

/// A GPU that evaluates linear layers.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Gpu {
    /// Its name.
    pub device: String,
    /// Seconds that the first verdict of the process took there beyond the next of the same: opening it, and cuBLAS.
    pub opening: f64,
    /// Products of a thread from which on `--oracle auto` opens it.
    pub pays: usize,
}

/// What a verdict takes.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct VerdictRow {
    /// Name of the model.
    pub model: String,
    /// Its layers.
    pub layers: usize,
    /// Tokens of the prompt.
    pub tokens: usize,
    /// How the stages are checked.
    pub check: CheckMode,
    /// What evaluates.
    pub oracle: String,
    /// Seconds of llama.cpp's prefill with every stage tapped.
    pub reference: f64,
    /// Seconds of the CPU engine's.
    pub subject: f64,
    /// Seconds that judging both takes.
    pub judging: f64,
    /// Elements that both captured, and that are read for it.
    pub elements: usize,
    /// Products of the linear layers of both, where every row is computed; 0 where it was not counted.
    #[serde(default)]
    pub products: usize,
}

impl VerdictRow {
    /// Nanoseconds for each element.
    fn of_element(&self) -> f64 {
        1e9 * self.judging / self.elements as f64
    }

    /// The same with half the tokens.
    fn half<'a>(&self, all: &'a [Self]) -> Option<&'a Self> {
        let same = |r: &&Self| (&r.model, r.check, &r.oracle) == (&self.model, self.check, &self.oracle);
        all.iter().filter(same).find(|r| 2 * r.tokens == self.tokens)
    }
}

/// What judging some layers of a model takes.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LayersRow {
    /// Name of the model.
    pub model: String,
    /// Tokens of the prompt.
    pub tokens: usize,
    /// How the stages are checked.
    pub check: CheckMode,
    /// What evaluates.
    pub oracle: String,
    /// Layers, the first of the model.
    pub layers: usize,
    /// Seconds that judging them takes on both sides.
    pub judging: f64,
}

impl VerdictBench {
    /// What it tells.
    pub(in crate::report) fn screen(&self) -> Screen {
        let shown = |x: Option<f64>| x.map_or_else(|| NONE.to_owned(), |x| format!("{x:.2}"));
        let rows = |model: &str| {
            let own = self.verdicts.iter().filter(move |r| r.model == model);
            own.map(|r| {
                let half = r.half(&self.verdicts);
                let growth = half.map(|half| r.judging / half.judging);
                let mut cells = vec![r.tokens.to_string(), named(r.check), r.oracle.clone()];
                cells.extend([r.reference, r.subject, r.judging, r.judging / r.reference].map(|x| shown(Some(x))));
                cells.extend(
                    [growth, growth.map(|g| g / 2.0), half.map(|half| r.of_element() / half.of_element())].map(shown),
                );
                cells
            })
            .collect::<Vec<_>>()
        };
        let columns = [
            "tokens", "check", "oracle", "llama.cpp, tapped, s", "engine, s", "judging, s", "of llama.cpp", "growth",
            "a token", "an element",
        ];
        let by_layer = |model: &str| {
            let own = self.layers.iter().filter(move |r| r.model == model);
            own.map(|r| {
                let each = 1e3 * r.judging / r.layers as f64;
                let cells = [r.tokens.to_string(), named(r.check), r.oracle.clone(), r.layers.to_string()];
                cells.into_iter().chain([shown(Some(r.judging)), format!("{each:.1}")]).collect()
            })
            .collect::<Vec<_>>()
        };
        let of_layers = ["tokens", "check", "oracle", "layers", "judging, s", "ms a layer"];
        let mut models: Vec<&str> = self.verdicts.iter().map(|r| r.model.as_str()).collect();
        models.dedup();
        let cpu = self.machine.as_ref().map_or_else(String::new, |machine| format!(" ({})", machine.cpu));
        let how =
            format!("both sides on the CPU{cpu}, {}, {}", counted(self.threads, "thread"), medians(self.rounds.into()));
        let mut sections = vec![Section::lines("", vec![("how", how)])];
        for model in models {
            let (verdicts, layers) = (rows(model).into_iter(), by_layer(model).into_iter());
            sections.push(Section::table(model, Table::new(&columns, &[0, 3, 4, 5, 6, 7, 8, 9], verdicts)));
            let title = format!("{model}, its layers alone");
            sections.push(Section::table(&title, Table::new(&of_layers, &[0, 3, 4, 5], layers)));
        }
        sections.extend(self.gpu.iter().flat_map(|gpu| self.of_gpu(gpu)));
        let title = if self.gpu.is_some() { "what a verdict takes with a GPU" } else { "what a verdict takes" };
        measured(title.to_owned(), self.growth(), sections)
    }

    /// By how much judging with probes grows from half the tokens to the most that were measured, by each oracle.
    fn growth(&self) -> String {
        let probed = || self.verdicts.iter().rev().filter(|r| r.check == CheckMode::Probe);
        let mut oracles: Vec<&str> = Vec::new();
        self.verdicts.iter().for_each(|r| {
            if !oracles.contains(&r.oracle.as_str()) {
                oracles.push(&r.oracle);
            }
        });
        let of = |oracle: &str| {
            let (r, half) = probed().filter(|r| r.oracle == oracle).find_map(|r| Some((r, r.half(&self.verdicts)?)))?;
            let growth = r.judging / half.judging;
            let (from, to) = (half.tokens, r.tokens);
            let by = if oracles.len() > 1 { format!(" by --oracle {oracle}") } else { String::new() };
            Some(format!(
                "from {from} to {to} tokens judging with probes{by} grows {growth:.2} times, {:.2} times a token and {:.2} \
                 times an element that is read",
                growth / 2.0,
                r.of_element() / half.of_element()
            ))
        };
        let told: Vec<String> = oracles.iter().filter_map(|oracle| of(oracle)).collect();
        if told.is_empty() {
            return "no length twice another was probed, so no growth is given".to_owned();
        }
        told.join("; ")
    }

    /// What says from how many products on it is worth opening: verdicts that compute every row, on the CPU and there.
    fn of_gpu(&self, gpu: &Gpu) -> Vec<Section> {
        let full = |oracle: &'static str| {
            self.verdicts.iter().filter(move |r| r.check == CheckMode::Full && r.oracle == oracle)
        };
        let row = |there: &VerdictRow| {
            let same = |r: &&VerdictRow| (&r.model, r.tokens) == (&there.model, there.tokens);
            let here = full("cpu").find(same)?;
            let saved = here.judging - there.judging;
            let pays = there.products as f64 / self.threads as f64 * gpu.opening / saved;
            let mut cells =
                vec![there.model.clone(), there.tokens.to_string(), format!("{:.2e}", there.products as f64)];
            cells.extend([here, there].map(|r| format!("{:.2e}", r.products as f64 / r.judging)));
            cells.push(format!("{saved:.2}"));
            cells.push(if saved > 0.0 { format!("{pays:.2e}") } else { NONE.to_owned() });
            Some(cells)
        };
        let columns =
            ["model", "tokens", "products", "a second, cpu", "a second, cuda", "saved, s", "pays from, a thread"];
        let opening = format!(
            "{:.2} s, which the first verdict there takes beyond the next of the same; --oracle auto opens it from {:.2e} \
             products a thread on",
            gpu.opening, gpu.pays as f64
        );
        vec![
            Section::lines("The GPU", vec![("device", gpu.device.clone()), ("opening", opening)]),
            Section::table(
                "Every row computed, there and on the CPU",
                Table::new(&columns, &[1, 2, 3, 4, 5, 6], full("cuda").filter_map(row)),
            ),
        ]
    }
}

/// How the check is called on the command line.
fn named(check: CheckMode) -> String {
    check.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use qdiff::report::markdown;

    fn row(tokens: usize, check: CheckMode, oracle: &str, judging: f64) -> VerdictRow {
        let (model, oracle, products, elements) = ("m".to_owned(), oracle.to_owned(), tokens * 1_000_000_000, tokens);
        VerdictRow {
            model,
            layers: 4,
            tokens,
            check,
            oracle,
            reference: 1.0,
            subject: 1.0,
            judging,
            elements,
            products,
        }
    }

    /// Growth is measured within each oracle, and a GPU pays once it saves the time of opening it.
    #[test]
    fn each_oracle_by_itself() {
        let verdicts = vec![
            row(8, CheckMode::Full, "cpu", 3.0),
            row(8, CheckMode::Probe, "cpu", 1.0),
            row(16, CheckMode::Probe, "cpu", 1.5),
            row(8, CheckMode::Full, "cuda", 1.0),
            row(8, CheckMode::Probe, "cuda", 1.0),
            row(16, CheckMode::Full, "cuda", 2.0),
            row(16, CheckMode::Probe, "cuda", 3.0),
        ];
        let gpu = Some(Gpu { device: "a card".to_owned(), opening: 0.5, pays: 1 << 32 });
        let told = markdown::screen(
            &VerdictBench { threads: 2, rounds: 1, machine: None, gpu, verdicts, layers: Vec::new() }.screen(),
            1,
        );
        for words in
            ["probes by --oracle cpu grows 1.50 times", "probes by --oracle cuda grows 3.00 times", "a card", "0.50 s"]
        {
            assert!(told.contains(words), "{words}: {told}");
        }
        // 8e9 products in 3 and in 1 second: of two threads, one has 1e9 when the half second is saved.
        assert!(told.contains("| m | 8 | 8.00e9 | 2.67e9 | 8.00e9 | 2.00 | 1.00e9 |"), "{told}");
        assert!(told.contains("| 16 | full | cuda | 1.00 | 1.00 | 2.00 | 2.00 | 2.00 | 1.00 | 1.00 |"), "{told}");
    }
}
