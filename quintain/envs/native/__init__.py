"""Classic-control tasks that step all lanes in one compiled call, with the numbers of Gymnasium's own."""
