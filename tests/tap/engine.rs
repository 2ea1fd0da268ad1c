//! An engine in Rust, dumped by the crate alone, as engine.c is by the header: its values are in `values.txt` and
//! `values.bin` (see values.h). Every other tap goes through a buffer in which its elements are transposed.

use qdiff_tap::{Elements, Rows, Strided, Tap};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (lines, elements) = (std::fs::read_to_string("values.txt")?, std::fs::read("values.bin")?);
    let mut elements = elements.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    let tap = Tap::begin("an engine in Rust")?;
    let mut of = None;
    for (which, line) in lines.lines().enumerate() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["step", first, _, ref ids @ ..] => {
                let ids = ids.iter().map(|id| id.parse()).collect::<Result<Vec<_>, _>>()?;
                tap.step(first.parse()?, &ids)?;
                of = None;
            }
            ["whose", _, ref all @ ..] => {
                tap.sequences(&all.iter().map(|s| s.parse()).collect::<Result<Vec<_>, _>>()?)?;
            }
            ["prefix", from, to, tokens] => tap.prefix(from.parse()?, to.parse()?, tokens.parse()?)?,
            ["keeps", sequence, tokens] => tap.taken_back(sequence.parse()?, tokens.parse()?)?,
            ["of", sequence] => of = Some(sequence.parse()?),
            ["table", _, ref slots @ ..] => {
                let slots = slots.iter().map(|s| s.parse::<i32>()).collect::<Result<Vec<_>, _>>()?;
                tap.add_of(of.ok_or("a table is of a sequence")?, "tables", None, Elements::of(vec![slots.len()], slots))?;
            }
            ["tap", name, layer, rows, width] => {
                // Outside of layers it is -1.
                let (layer, rows, width): (_, usize, usize) = (layer.parse().ok(), rows.parse()?, width.parse()?);
                let data: Vec<f32> = elements.by_ref().take(rows * width).collect();
                if let Some(sequence) = of {
                    tap.add_of(sequence, name, layer, Rows { data: &data, width })?;
                } else if which % 2 == 0 {
                    tap.rows(name, layer, &data, width)?;
                } else {
                    let other: Vec<f32> = (0..rows * width).map(|i| data[i % rows * width + i / rows]).collect();
                    tap.add(name, layer, Strided { data: &other, shape: &[rows, width], strides: &[1, rows] })?;
                }
            }
            _ => return Err(format!("no line of values.txt: {line}").into()),
        }
    }
    Ok(tap.close()?)
}
