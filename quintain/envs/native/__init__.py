"""Classic-control tasks that step all lanes in one compiled call; results equal Gymnasium's bitwise."""
