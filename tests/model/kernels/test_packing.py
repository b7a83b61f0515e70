"""The layout of panels."""

from __future__ import annotations

import torch

from sluiceway.model.kernels.packing import interleave, pack_bf16, pack_int8


def test_a_panel_holds_the_words_of_32_outputs_step_by_step() -> None:
    """In bf16 a word has two inputs. Zeros fill whole lines and panels."""
    weight = torch.arange(40.0 * 6).view(40, 6).to(torch.bfloat16)
    product = pack_bf16(weight, torch.ones(40))
    assert product.panels.shape == (2, 16, 32, 2)
    assert torch.equal(product.panels[1, 2, 7], weight[39, 4:6])
    assert product.panels[1, :, 8:].count_nonzero() == product.panels[:, 3:].count_nonzero() == 0
    assert product.bias is not None and product.bias.tolist() == [1] * 40 + [0] * 24
    struct = product.struct()
    assert (struct.n_outputs, struct.n_inputs, struct.is_int8) == (64, 6, 0)
    assert struct.panels == product.panels.data_ptr() and struct.scales is None


def test_bytes_are_scaled_by_the_largest_of_their_output() -> None:
    """In int8 a word has four inputs. The panel also has the sums of each 64 inputs. An output of zeros stays zero."""
    weight = torch.zeros(32, 70)
    weight[3, 0], weight[3, 65], weight[3, 69] = -2.54, 1.0, 0.02
    product = pack_int8(weight)
    assert product.panels.shape == (1, 32, 32, 4)
    assert product.scales is not None and product.weight_sums is not None
    assert product.scales[3].item() == torch.tensor(2.54 / 127).item()
    assert product.panels[0, 0, 3].tolist() == [-127, 0, 0, 0]
    assert product.panels[0, 16, 3].tolist() == [0, 50, 0, 0] and product.panels[0, 17, 3].tolist() == [0, 1, 0, 0]
    assert product.weight_sums[0, :, 3].tolist() == [-127, 51]
    assert product.panels[0, :, 4:].count_nonzero() == 0
    assert product.struct().is_int8 == 1


def test_gate_and_up_rows_alternate_in_groups_of_16() -> None:
    """Matrices and biases are arranged so. Zeros fill the last 16."""
    gate_up = torch.cat((torch.arange(1, 21), torch.arange(101, 121)))
    mixed = interleave(gate_up)
    assert mixed[:16].tolist() == list(range(1, 17)) and mixed[16:32].tolist() == list(range(101, 117))
    assert mixed[32:].tolist() == [17, 18, 19, 20] + [0] * 12 + [117, 118, 119, 120] + [0] * 12
    assert torch.equal(interleave(gate_up[:, None].repeat(1, 3))[:, 2], mixed)
