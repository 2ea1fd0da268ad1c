//! What was computed instead: for an origin that no known fault explains, the solvers look for the formula and its
//! condition.
//!
//! A solver proposes [`Law`]s: for every element of the stage what it would be if the kernel did one certain thing
//! otherwise. Parameters are fitted on half of the wrong elements. A law holds if *every* wrong element is what it says,
//! within the bound of rounding, those of the other half too; a condition must then separate the right elements that it
//! would change from the wrong ones (`when`). Nothing is concluded from the size of an error, and nothing from NaN.

mod accumulated;
mod altered;
mod approximate;
mod attended;
mod by_position;
mod converted;
mod counted;
mod crossed;
mod cut;
mod example;
mod experts;
mod factors;
mod fault;
mod fields;
mod form;
mod functions;
mod fused;
mod gated;
mod given;
mod groups;
mod heads;
mod held;
mod index;
mod indexed;
mod kept;
mod lanes;
mod lengths;
mod maps;
mod moved;
mod norm;
mod one_input;
mod operands;
mod predict;
mod rank;
mod recurrent;
mod rounded;
mod rules;
mod scaled;
mod scene;
mod shared_tiles;
mod shares;
mod slots;
mod structure;
mod sum;
mod tables;
mod terms;
#[cfg(test)]
mod tests;
mod totals;
mod turned;
mod twice;
mod undeclared;
mod unmade;
mod upstream;
mod when;
mod window;
mod within;

use super::work::Meter;
use crate::number::Real;
use crate::verdict::{Evidence, FEW, RowAt};
pub(super) use attended::{Keys, Seats};
pub use example::Example;
pub(super) use fault::{Fault, of_fault};
pub(super) use fields::Reading;
pub use form::Form;
pub(super) use functions::{ACTIVATIONS, exponents};
use held::{Held, held};
pub(super) use kept::{BLOCK, coded_by};
pub(super) use norm::AFTER_ROTATION;
pub(super) use predict::{
    Condition, OTHERWISE, Pair, Predicted, RIGHT, TOO_LITTLE, WORK, alike, allowed, jointly, of_all, of_law, of_values,
    unexplained,
};
use qdiff_engine::ops::Anatomy;
pub(super) use rules::{apart, known_up_to, others};
use scene::Scene;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
pub use when::{Holds, When};

/// How far a solution is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// It gives every wrong element within rounding, those too that it was not fitted on, and a condition tells these
    /// elements from the right ones.
    Proved,
    /// It gives every wrong element, but why others are right is not known.
    Consistent,
}

/// What the subject computed instead, found without the catalogue.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Solution {
    /// What replaces the right values, as a sentence without its end.
    pub what: String,
    /// Where.
    pub holds: Holds,
    /// How far it is shown.
    pub confidence: Confidence,
    /// Whether the output is the right one in a coarser format, and nothing else.
    #[serde(default)]
    pub coarser: bool,
    /// Whether it is a sum kept in f16.
    #[serde(skip)]
    pub(super) halves: bool,
    /// The law, where it is known as data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub law: Option<Form>,
    /// The solver that found it, and the law in its words.
    #[serde(skip)]
    pub(super) words: (usize, String),
    /// The number of the model that differs: its name, and its value here.
    #[serde(skip)]
    pub(super) of_model: Option<(&'static str, f64)>,
    /// How weights are read, where that is all of it.
    #[serde(skip)]
    pub(super) reads: Option<Reading>,
    /// Where it holds as a fact, if its condition lists rows and is no rule for them.
    #[serde(skip)]
    pub(super) listed: Option<Box<Holds>>,
    /// The same if that is a condition on two features that so few rows have by chance.
    #[serde(skip)]
    pub(super) by_chance: Option<Box<Holds>>,
    /// Laws by other rules that no run tells from this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) also: Vec<Form>,
    /// Keys of a query up to which the parts that it names are known: parts of other rules are the same so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) up_to: Option<usize>,
    /// Wrong elements that it gives.
    pub elements: usize,
    /// Wrong elements of which it does not say what they are.
    #[serde(default, skip_serializing_if = "is_none")]
    pub unsaid: usize,
    /// Those that it gives and that nothing was fitted on.
    pub held_out: usize,
    /// Largest share of what rounding allows, over the latter.
    #[serde(with = "Real")]
    pub used: f64,
}

fn is_none(n: &usize) -> bool {
    *n == 0
}

impl Solution {
    /// Whether no number of it was measured on the values.
    pub(super) fn is_formula(&self) -> bool {
        self.law.is_none() && self.of_model.is_none()
    }

    /// The whole of it in one sentence without its end.
    pub fn told(&self) -> String {
        let told = match &self.holds {
            Holds::Everywhere => self.what.clone(),
            holds => format!("{}, {holds}", self.what),
        };
        let known = self.up_to.map(|keys| format!(" (known of queries with up to {keys} keys)"));
        told + &known.unwrap_or_default() + &self.or_others()
    }

    /// The other rules that the runs allow, in words.
    fn or_others(&self) -> String {
        let others: Vec<String> = self.also.iter().map(rules::told).collect();
        if others.is_empty() {
            String::new()
        } else if others.len() > SHOWN {
            let n = others.len();
            format!(
                " (or one of {n} other rules for which keys are seen: the values of the runs fit each of these rules)"
            )
        } else {
            format!(" (or {}: the values of the runs fit each of these rules)", others.join(", or "))
        }
    }

    /// The one whose condition is one that kernels make, or else on one feature; of both alike this one, which comes first.
    fn or_simpler(self, other: Self) -> Self {
        if self.holds.simplicity() > other.holds.simplicity() { other } else { self }
    }

    /// The factor, where the right value times a constant is all of it, and in which rows no rule says.
    pub(super) fn listed_factor(&self) -> Option<f64> {
        self.law.as_ref().and_then(Form::factor).filter(|_| self.listed.is_some())
    }

    /// Whether it is two laws at once.
    pub(super) fn is_twice(&self) -> bool {
        matches!(self.law, Some(Form::Twice(_)))
    }

    /// Whether all that is otherwise lies within rows of a cache: in how they are coded, or in the order of their columns.
    pub(super) fn is_within_rows(&self) -> bool {
        use moved::{Axis, Moved};
        let axis = match &self.law {
            Some(Form::Kept(_) | Form::Lanes(_) | Form::Sum(_)) => return true,
            Some(Form::Moved(Moved::Along { axis, .. })) => axis,
            _ => return false,
        };
        matches!(axis, Axis::Head | Axis::Column | Axis::OfHead(_))
    }

    /// Whether it is that whole rows are others: of another place, of another buffer, or of another slot.
    pub(super) fn is_of_other_rows(&self) -> bool {
        !self.is_within_rows() && matches!(self.law, Some(Form::Moved(_) | Form::Given(_) | Form::Written(_)))
    }

    /// The stage whose values of the same token are there instead, if that is all of it.
    pub(super) fn other_stage(&self) -> Option<qdiff_engine::model::StageId> {
        use given::{Given, Kin, Place};
        match self.law {
            Some(Form::Given(Given::Stage { stage, kin: Kin::Other, before: false, at: Place::Token })) => Some(stage),
            _ => None,
        }
    }

    /// Whether it is a rule for where NaN is.
    pub(super) fn is_of_nan(&self) -> bool {
        self.law.as_ref().is_some_and(Form::is_never_written)
    }

    /// Whether it is a rule for which elements are not made.
    pub(super) fn leaves_out(&self) -> bool {
        matches!(self.law, Some(Form::Unmade(_)))
    }

    /// How many other rules the runs allow, where these are too many to be reported; then this one is as likely wrong as right. One is
    /// too many if the rule is read off one row. A rule without a kernel's own number is the likely one, and stays.
    pub(super) fn undecided(&mut self, of_one_row: bool) -> Option<usize> {
        if !of_one_row && self.sees_plainly() {
            return None;
        }
        let most = if of_one_row { 0 } else { SHOWN };
        (self.also.len() > most).then(|| std::mem::take(&mut self.also).len())
    }

    /// The fault of the catalogue that its law is.
    pub(super) fn fault(&self) -> Option<&crate::mutations::CauseId> {
        if let Some(Form::Fault(fault)) = &self.law { Some(&fault.name) } else { None }
    }

    /// Whether each row, or head of it, has a factor of its own.
    pub(super) fn has_own_factors(&self) -> bool {
        self.words.0 == STRUCTURE && structure::is_of_rows(&self.words.1)
    }

    /// Tells rows that are listed as a fact, and not as a rule; says whether it had such.
    pub(super) fn tell_no_list(&mut self) -> bool {
        let Some(listed) = self.listed.take() else { return false };
        if *listed != Holds::Everywhere {
            self.confidence = Confidence::Consistent;
        }
        self.holds = *listed;
        true
    }

    /// Tells what may hold by chance as a fact: no other run bears it out.
    pub(super) fn tell_no_chance(&mut self) {
        if let Some(fact) = self.by_chance.take() {
            (self.holds, self.confidence) = (*fact, Confidence::Consistent);
        }
    }

    /// Whether it says what values are, and takes no number of a row from the row itself.
    pub fn gives_values(&self) -> bool {
        !matches!(self.law, Some(Form::Rank(_)))
    }

    /// Whether both were found by one solver, whose laws come to the same in some shapes.
    pub(super) fn is_akin(&self, other: &Self) -> bool {
        self.words.0 == other.words.0 && self.confidence == other.confidence && self.holds == other.holds
    }

    /// The same as it is looked for in other layers; it was found in `layer`.
    pub(super) fn known(&self, layer: Option<u16>) -> Known {
        let (solver, what) = &self.words;
        let law = self.law.clone().map(|form| (form, layer));
        let reads = self.reads.clone().filter(|_| self.holds == Holds::Everywhere);
        Known { solver: *solver, law, what: anywhere(what, layer), told: anywhere(&self.told(), layer), reads }
    }
}

/// What is proved of a stage, as it is looked for in other layers.
#[derive(Clone, PartialEq)]
pub(super) struct Known {
    solver: usize,
    /// As data, of this layer.
    law: Option<(Form, Option<u16>)>,
    what: String,
    told: String,
    reads: Option<Reading>,
}

impl Known {
    /// How weights are read, with the words for it, where that is all of it.
    pub(super) fn reading(&self) -> Option<(&str, &Reading)> {
        Some((&self.told, self.reads.as_ref()?))
    }

    /// The laws of a stage in another layer that are this one.
    fn laws<'a>(&self, scene: &'a Scene<'a>) -> Vec<Law<'a>> {
        let layer = scene.node().id.layer;
        if let Some((form, from)) = &self.law {
            let by = i32::from(layer.unwrap_or(0)) - i32::from(from.unwrap_or(0));
            return form.in_layer(by).and_then(|form| Law::of(form, scene)).into_iter().collect();
        }
        if let Some(reading) = &self.reads {
            return fields::by_reading(scene, &self.what, reading).into_iter().collect();
        }
        proposed(scene, self.solver).into_iter().filter(|law| anywhere(&law.what, layer) == self.what).collect()
    }
}

/// The words about a stage in `layer` made general: names of tensors and stages of the layer, and of those
/// beside it, without its number.
pub fn anywhere(text: &str, layer: Option<u16>) -> String {
    let Some(layer) = layer else { return text.to_owned() };
    let near = [(layer.checked_sub(1), "N−1"), (Some(layer), "N"), (layer.checked_add(1), "N+1")];
    let near = near.into_iter().filter_map(|(layer, word)| Some((layer?, word)));
    near.fold(text.to_owned(), |text, (layer, word)| {
        text.replace(&format!("blk.{layer}."), &format!("blk.{word}."))
            .replace(&format!("L{layer:02}."), &format!("L{word}."))
    })
}

/// What the elements of a row would be; NaN where a law does not say. With the bound of each.
struct Row {
    value: Vec<f64>,
    bound: Vec<f32>,
}

/// What a row would be; nothing where the law does not say.
type Alternative<'a> = Box<dyn Fn(&RowAt) -> Option<Row> + 'a>;

/// One thing that a kernel may do otherwise.
struct Law<'a> {
    what: String,
    /// As data.
    form: Option<Form>,
    /// Whether it is the right output in a coarser format.
    coarser: bool,
    /// Whether it is a sum kept in f16.
    halves: bool,
    /// Numbers that were read off the wrong elements.
    parameters: usize,
    row: Alternative<'a>,
    /// The number of the model that it says is another: its name, and its value here.
    of_model: Option<(&'static str, f64)>,
    /// Whether it has a number of its own for each part: then it may be of any of them.
    parts: bool,
    /// Whether its numbers are read off every other element of each run of so many, and not off some rows.
    of_even: Option<usize>,
    /// How it reads weights, where that is all of it.
    reads: Option<Reading>,
    /// A law that often comes to the same, and the words where it holds as well.
    twin: Option<(Box<Law<'a>>, String)>,
}

impl<'a> Law<'a> {
    fn new(what: impl Into<String>, parameters: usize, row: impl Fn(&RowAt) -> Option<Row> + 'a) -> Self {
        Self {
            what: what.into(),
            form: None,
            coarser: false,
            halves: false,
            parameters,
            row: Box::new(row),
            of_model: None,
            parts: false,
            of_even: None,
            reads: None,
            twin: None,
        }
    }

    /// The same as the law of another number of the model.
    fn of_model(self, name: &'static str, value: f64) -> Self {
        Self { of_model: Some((name, value)), ..self }
    }
}

type Solver = for<'a> fn(&'a Scene<'a>) -> Vec<Law<'a>>;

/// The simpler first: if two laws hold, the first is reported.
const SOLVERS: &[Solver] = &[
    undeclared::laws,
    kept::scales,
    unmade::laws,
    given::laws,
    moved::rows,
    norm::laws,
    lengths::laws,
    totals::laws,
    by_position::laws,
    sum::laws,
    functions::laws,
    gated::laws,
    operands::laws,
    recurrent::laws,
    window::laws,
    moved::places,
    fused::laws,
    slots::laws,
    counted::ends,
    attended::laws,
    moved::columns,
    rounded::laws,
    converted::laws,
    terms::laws,
    shares::laws,
    counted::laws,
    within::laws,
    accumulated::laws,
    approximate::laws,
    fields::laws,
    operands::ids,
    altered::laws,
    lanes::laws,
    turned::laws,
    moved::keys,
    experts::laws,
    one_input::laws,
    upstream::laws,
];

/// What is left where none of these knows a formula: a factor of each row first.
const OTHERS: &[Solver] = &[structure::laws, twice::laws, rounded::over, rank::laws];

/// The solver of factors: one of them is read off each row.
const STRUCTURE: usize = SOLVERS.len();

fn solvers() -> impl Iterator<Item = &'static Solver> {
    SOLVERS.iter().chain(OTHERS)
}

/// What a solver proposes, by its number.
fn proposed<'a>(scene: &'a Scene<'a>, number: usize) -> Vec<Law<'a>> {
    let mut all = solvers().nth(number).map_or_else(Vec::new, |solver| solver(scene));
    let name = |law: &mut Law<'a>| law.what = gated::named(scene, std::mem::take(&mut law.what));
    for law in &mut all {
        if let Some((twin, _)) = &mut law.twin {
            name(twin);
        }
        name(law);
    }
    all
}

/// That each wrong row is multiplied by a factor of its own, if it is.
pub(super) fn own_factors(e: &Evidence<'_>, meter: &Meter) -> Option<Solution> {
    let scene = Scene::new(e, meter)?;
    weigh(&scene, (STRUCTURE, &structure::of_rows(&scene)), &[])
}

/// Where the stage holds NaN, as memory that nobody wrote does: a rule for it.
pub(super) fn never_written(e: &Evidence<'_>, meter: &Meter) -> Option<Solution> {
    let none_is_a_number = e.bad_rows().all(|row| {
        let (got, want, bound) = e.row(row);
        (0..got.len()).all(|i| got[i].is_nan() || crate::verdict::right(got[i], want[i], bound[i]))
    });
    let scene = Scene::of(e, meter);
    let law = Law::of(Form::Given(given::Given::NeverWritten), &scene).filter(|_| none_is_a_number)?;
    let solution = weigh(&scene, (0, &law), &[])?;
    matches!(solution.holds, Holds::Under { .. }).then_some(solution)
}

/// What explains every wrong element, if a solver finds it with the work that is left. A `known` law, as proved of the
/// same stage in other layers, is tried first, for any work left, and needs no number of elements to be shown.
///
/// What is known of stages of other names, `elsewhere`, comes next.
pub(super) fn solve(e: &Evidence<'_>, (known, elsewhere): (&[Known], &[Known]), meter: &Meter) -> Option<Solution> {
    solve_if(e, (known, elsewhere), meter, &|_| true)
}

/// Another law of the solver that found this one, if `accept` takes it.
pub(super) fn beside(
    e: &Evidence<'_>, told: &Solution, meter: &Meter, accept: &dyn Fn(&Solution) -> bool,
) -> Option<Solution> {
    let scene = Scene::new(e, meter)?;
    let (number, words) = &told.words;
    let laws = proposed(&scene, *number);
    let others = laws.iter().filter(|law| law.what != *words && !law.parts);
    let mut found = others.take_while(|_| !meter.over()).filter_map(|law| weigh(&scene, (*number, law), &[]));
    found.find(|found| found.confidence == Confidence::Proved && accept(found))
}

/// A law of another layer, if it holds here; its condition may be another one.
pub(super) fn again(e: &Evidence<'_>, known: &Known, meter: &Meter) -> Option<Solution> {
    let scene = Scene::new(e, meter)?;
    known.laws(&scene).iter().find_map(|law| weigh(&scene, (known.solver, law), &[]))
}

/// A law that explains another stage, if it holds here in the same words: that needs no number of elements to be shown.
pub(super) fn by_known(e: &Evidence<'_>, known: &[Known], meter: &Meter) -> Option<Solution> {
    let scene = Scene::new(e, meter)?;
    // What is off by little more than rounding is given by anything.
    let far = |w: &crate::verdict::Wrong| {
        let bound = f64::from(e.row(&e.rows[w.row]).2[w.index]) + e.grain.reach(w.got);
        (f64::from(w.got) - w.want).abs() > FAR * bound
    };
    if !e.wrong().iter().all(far) {
        return None;
    }
    let mut found = known.iter().filter_map(|law| in_scene(&scene, law, known));
    found.find(|solution| solution.confidence == Confidence::Proved)
}

fn in_scene(scene: &Scene<'_>, law: &Known, known: &[Known]) -> Option<Solution> {
    let laws = law.laws(scene);
    let mut found = laws.iter().filter_map(|each| weigh(scene, (law.solver, each), known));
    found.find(|found| found.known(scene.node().id.layer).told == law.told)
}

/// The first that `accept` takes.
pub(super) fn solve_if(
    e: &Evidence<'_>, (known, elsewhere): (&[Known], &[Known]), meter: &Meter, accept: &dyn Fn(&Solution) -> bool,
) -> Option<Solution> {
    let scene = Scene::new(e, meter)?;
    if let Some(found) = known.iter().find_map(|law| in_scene(&scene, law, known)) {
        return Some(found);
    }
    // One cause has one sentence: what explains another stage is tried before anything else, and must show as much.
    let alike = |known_law: &Known| {
        let form = known_law.law.as_ref()?.0.of_stage(e.node.id)?;
        let found = weigh(&scene, (known_law.solver, &Law::of(form, &scene)?), &[])?;
        (found.known(e.node.id.layer).told == known_law.told).then_some(found)
    };
    if let Some(found) = elsewhere.iter().find_map(alike) {
        return Some(found);
    }
    let read = |known: &Known| {
        let law = fields::by_reading(&scene, &known.what, known.reads.as_ref()?)?;
        let found = weigh(&scene, (known.solver, &law), &[])?;
        (found.confidence == Confidence::Proved && found.holds == Holds::Everywhere).then_some(found)
    };
    if let Some(found) = elsewhere.iter().find_map(read) {
        return Some(found);
    }
    // A law without a reason why other elements are right is reported if no solver finds one.
    let mut consistent = None;
    for (number, solver) in solvers().enumerate() {
        if meter.over() {
            break;
        }
        let laws = solver(&scene);
        let mut proved = None;
        for law in &laws {
            // What is known of each part alone says less than what gives values.
            if law.parts && consistent.is_some() {
                continue;
            }
            if meter.over() {
                break;
            }
            match weigh(&scene, (number, law), known).filter(accept) {
                // What holds everywhere says more than what holds of a part, unless it is a list.
                Some(found) if found.confidence == Confidence::Proved && found.holds == Holds::Everywhere => {
                    let plainer = proved.as_ref().is_some_and(|first: &Solution| first.is_plainer(&found));
                    if proved.is_none() || law.parameters <= LISTED && !plainer {
                        return Some(found);
                    }
                }
                Some(found) if found.confidence == Confidence::Proved => {
                    proved = Some(proved.map_or(found.clone(), |first: Solution| first.or_simpler(found)));
                }
                found => consistent = consistent.or(found),
            }
        }
        if proved.is_some() {
            return proved;
        }
    }
    consistent
}

/// Other rules that are reported beside one: if the runs allow more, none of them is reported.
const SHOWN: usize = 1;

/// A law without a rule for where it holds gives at least one in so many of the elements that it would change.
const RARE: usize = 32;

/// Numbers that a rule has at most; a law of more of them is a list.
const LISTED: usize = 4;

/// Bits by which a law must say more of the elements that it was not fitted on than that they are wrong: chance gives one
/// of a thousand laws under one of a thousand conditions 20, and near the bound anything gives what is wrong.
pub(super) const BITS: f64 = 24.0;

/// How many times the bound elements are off that a law of another stage may explain alone.
const FAR: f64 = 16.0;

/// A number in four digits, or as short as it is exact.
pub(super) fn short(x: f64) -> String {
    let exact = x.to_string();
    if exact.len() <= 6 { exact } else { format!("{:.*}", (3 - x.abs().log10().floor() as i32).max(0) as usize, x) }
}

/// An element by the index of its row in the evidence, and its own in the row.
type At = (usize, usize);

/// What a law is worth that is held against every row of the scene.
fn weigh(scene: &Scene<'_>, (solver, law): (usize, &Law<'_>), known: &[Known]) -> Option<Solution> {
    let e = scene.e;
    let held = held(scene, law)?;
    let Held { ref wrong, ref spared, held_out, used, bits, .. } = held;
    let thin = wrong.len() < FEW + law.parameters || held_out < FEW.min(wrong.len() / 2) || bits < BITS;
    if wrong.is_empty() || held.changes_nothing() || thin && known.is_empty() {
        return None;
    }
    let (holds, confidence) = if spared.is_empty() {
        (Holds::Everywhere, Confidence::Proved)
    } else {
        match held.conditions(scene) {
            conditions if !conditions.is_empty() => {
                let holds = Holds::Under { conditions, tried: false };
                // What has a number for each part says nothing of why others have none, but where that is plain.
                let holds = if law.parts && holds.on_two_features() { Holds::Everywhere } else { holds };
                (holds, Confidence::Proved)
            }
            _ if law.parts => (Holds::Everywhere, Confidence::Proved),
            // What would be wrong nearly everywhere, and is not, is something else.
            _ if wrong.len() * RARE < wrong.len() + spared.len() => return None,
            _ => (held.unexplained(scene), Confidence::Consistent),
        }
    };
    // A list of rows fits any rows: until a run on other tokens confirms it, the report gives it as a fact.
    let positions: BTreeSet<usize> = wrong.iter().map(|at| e.rows[at.0].place.position).collect();
    // Past the embedding no kernel knows ids: what else the rows of one have in common may be what is wrong. A loader knows them.
    let may_be_of_id = positions.len() > 1 && matches!(e.node.op.anatomy(), Anatomy::Gather(_));
    let is_of_id = may_be_of_id && holds.told().first().is_some_and(|when| when.is_of_one_id());
    let rule = if is_of_id { Some(holds.clone()) } else { holds.by_rule() };
    let (holds, listed) = match rule {
        Some(holds) => (holds, None),
        None => (holds, Some(Box::new(if law.parts { Holds::Everywhere } else { held.unexplained(scene) }))),
    };
    // A rule for which keys are left out says of every key whether it is: it needs no condition on keys.
    if matches!(law.form, Some(Form::Unmade(_))) && !holds.is_of_rows() {
        return None;
    }
    let holds = if law.reads.is_some() { holds.of_weight_rows() } else { holds };
    let by_chance = holds.on_two_features() && !held.tells(scene, &holds);
    let by_chance = by_chance.then(|| Box::new(held.unexplained(scene)));
    let mut what = law.what.clone();
    if let Some((twin, both)) = &law.twin
        && let Some(other) = weigh(scene, (solver, twin), known)
    {
        match (&holds, &other.holds) {
            (a, b) if a == b => what.clone_from(both),
            // One of them holds everywhere, and the other where they are the same.
            (_, Holds::Everywhere) => return Some(other),
            _ => {}
        }
    }
    let (coarser, halves) = (law.coarser, law.halves);
    let (words, reads) = ((solver, law.what.clone()), law.reads.clone());
    let (of_model, law) = (law.of_model, law.form.clone());
    let elements = wrong.len();
    let found = Solution {
        what,
        holds,
        confidence,
        coarser,
        halves,
        law,
        words,
        of_model,
        reads,
        listed,
        by_chance,
        also: Vec::new(),
        up_to: None,
        elements,
        unsaid: held.unsaid.len(),
        held_out,
        used,
    };
    let layer = e.node.id.layer;
    let is_known = || known.iter().any(|known| known.told == found.known(layer).told);
    (!thin || confidence == Confidence::Proved && is_known()).then_some(found)
}
